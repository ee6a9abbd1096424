"""Plain tables: read from any file, and turned into records by a rule; needs no service.

Faulty cells are in ``InvalidRecordsError`` by row and column, and in ``TableError`` by file, too.
"""

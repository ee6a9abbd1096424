"""Tables: read from any file, kept as typed columns, and turned into what networks read.

Faulty cells are in ``InvalidRecordsError`` by row and column, and in ``TableError`` by file, too.
"""

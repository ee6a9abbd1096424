"""Datasets, their records and shards, and erasure.

Everything raises ``NotFoundError`` for a dataset that does not exist, ``GoneError`` for an archived
one, ``ConflictError`` or ``InvalidInputError`` for a definition that differs or does not fit,
``InvalidRecordsError`` with the row and column of each of the first faults of a file, and
``PayloadTooLargeError`` for one that is too large, packed or unpacked.
"""

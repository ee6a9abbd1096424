"""Imports: records that a worker reads from where they are, in the background.

Everything raises ``NotFoundError`` for a dataset or an import that does not exist, ``GoneError``
for an archived dataset, ``ConflictError`` where an import's state does not allow it, and
``PlaceNotAllowedError`` or ``InvalidInputError`` for a URL that may not be read. Decoding raises
``InvalidRecordsError`` for what a file holds, ``PayloadTooLargeError`` where it takes too much
memory, and ``DecodingBrokeOffError`` where its process ended, so that another one may succeed.
"""

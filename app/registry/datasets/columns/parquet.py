"""Writes Parquet files, and opens those of others, none of which is decrypted."""

import io
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from app.domain.errors import PayloadTooLargeError

_SIGNATURE_BYTES: Final = 28
"""After a footer that is readable though columns are encrypted: a nonce and an AES-GCM tag."""


class EncryptedFileError(ValueError):
    """A Parquet file is encrypted, or columns of it are."""

    def __init__(self) -> None:
        super().__init__("this Parquet file is encrypted: write it without encryption")


def opened(source: pa.NativeFile, *, most_footer_bytes: int) -> pq.ParquetFile:
    """Open a Parquet file.

    Raises:
        EncryptedFileError: pyarrow would end the process when it is asked for such a column.
        PayloadTooLargeError: its footer is larger than this.
        pa.ArrowException, OSError, ValueError: it is no Parquet file.
    """
    size = source.size()
    tail = source.read_at(min(size, 8), max(0, size - 8))
    footer_bytes = int.from_bytes(tail[:4], "little")
    if tail.endswith(b"PARE"):
        raise EncryptedFileError
    if tail.endswith(b"PAR1") and footer_bytes > most_footer_bytes:
        raise PayloadTooLargeError(f"it announces {footer_bytes} bytes of metadata")
    file = pq.ParquetFile(source)
    if footer_bytes == file.metadata.serialized_size + _SIGNATURE_BYTES:
        raise EncryptedFileError
    return file


def to_parquet(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file.

    Only texts go into dictionaries: those of numbers take ten times as long, and save nothing.
    """
    sink = io.BytesIO()
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    pq.write_table(table, sink, use_dictionary=texts)
    return sink.getvalue()

"""Files of imports are decoded in a process of their own, which may be killed."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.domain.errors import DecodingBrokeOffError, PayloadTooLargeError
from app.domain.schema import TableSchema
from app.registry.datasets.imports.decoding import Decoder
from tests.support.decoders import decoder_of, killed

SCHEMA = TableSchema.of({"note": "string"}, record_id="member")
FEW_BYTES = 320 << 20
"""Enough to load the libraries and little more."""


class File:
    """A file on the disk."""

    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        self.size = len(self._content)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._content[offset : offset + size]


def _file(path: Path, notes: pa.Array, **options: object) -> File:
    members = pa.array([f"m-{row}" for row in range(len(notes))])
    pq.write_table(pa.table({"member": members, "note": notes}), path, **options)
    return File(path)


@pytest.fixture
def plain(tmp_path: Path) -> File:
    """More parts than a pipe takes at once."""
    notes = pa.array([os.urandom(2048).hex() for _ in range(20_000)])
    return _file(tmp_path / "plain.parquet", notes, row_group_size=1000)


def test_a_process_that_is_killed_is_not_the_files_fault(plain: File) -> None:
    with Decoder(SCHEMA) as decoder:
        parts = decoder.parts(plain, 0)
        assert next(parts).num_rows > 0
        killed(decoder_of(os.getpid()))
        with pytest.raises(DecodingBrokeOffError, match="status -9"):
            list(parts)
    with Decoder(SCHEMA) as decoder:
        assert sum(part.num_rows for part in decoder.parts(plain, 0)) == 20_000


def test_a_process_that_is_killed_before_it_is_asked(plain: File) -> None:
    with Decoder(SCHEMA) as decoder:
        killed(decoder_of(os.getpid()))
        with pytest.raises(DecodingBrokeOffError):
            decoder.rows_of(plain)


def test_a_file_that_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    """It announces little: its dictionary of one long text becomes a text in each row."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000, pa.int32()), ["x" * 100_000])
    file = _file(tmp_path / "bomb.parquet", texts)
    assert file.size < 1 << 20
    with Decoder(SCHEMA, memory_bytes=FEW_BYTES) as decoder:
        assert decoder.rows_of(file) == 50_000
        with pytest.raises(PayloadTooLargeError, match="memory"):
            list(decoder.parts(file, 0))

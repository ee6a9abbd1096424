"""Files are read in a process of their own: a small one may unpack to anything."""

import io
import os
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from app.domain.errors import InvalidRecordsError, PayloadTooLargeError
from app.domain.schema import TableSchema
from app.registry.datasets.reading import Readers
from app.registry.datasets.uploads import MAX_ROWS
from tests.support.arrays import array_schema
from tests.support.command_lines import line_of
from tests.support.workshop import DATASET, Workshop

MIB = 1 << 20
WIDE = array_schema(1024, subjects=False)


def _parquet(rows: int, features: pa.Array | None = None, **options: object) -> bytes:
    columns = {
        "record_id": pa.array([f"r{row}" for row in range(rows)]),
        "label": pa.array(np.zeros(rows, np.int64)),
        "features": features or _zeros(rows, 1024),
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd", **options)
    return sink.getvalue()


def _zeros(rows: int, size: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * size, np.float32)), size)


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """One row of 300 million zeros: about 1 kB that is 1.2 GB."""
    zeros = pa.array(np.zeros(300_000_000, np.float32))
    content = _parquet(1, pa.ListArray.from_arrays(pa.array([0, len(zeros)], pa.int32()), zeros))
    assert len(content) < MIB
    return content


def _lying(content: bytes) -> bytes:
    """Return a file whose metadata announce that it unpacks to nothing."""
    metadata = pq.ParquetFile(pa.BufferReader(content)).metadata
    true = metadata.row_group(0).total_byte_size
    assert content.count(_zigzag(true)) >= 1
    return content.replace(_zigzag(true), _zigzag(0).rjust(len(_zigzag(true)), b"\x80"))


def _zigzag(number: int) -> bytes:
    """Spell a number as Parquet's metadata do."""
    number, spelt = 2 * number, bytearray()
    while number > 127:
        spelt.append(number & 127 | 128)
        number >>= 7
    return bytes([*spelt, number])


def test_a_file_that_unpacks_to_more_than_is_taken_is_refused_with_both_numbers() -> None:
    content = _parquet(20_000)
    assert len(content) < MIB
    with pytest.raises(
        PayloadTooLargeError, match=rf"(?s)\d{{8}} bytes or more; the limit is {64 * MIB}"
    ):
        Readers(64 * MIB).read(content, WIDE)


def test_metadata_that_lie_change_nothing() -> None:
    narrow = array_schema(1, subjects=False)
    rows = 2000
    content = _parquet(rows, pa.array([[0.0] * 1024] * rows), use_dictionary=False)
    with pytest.raises(PayloadTooLargeError):
        Readers(MIB).read(content, WIDE)
    with pytest.raises((PayloadTooLargeError, InvalidRecordsError)):
        Readers(MIB).read(_lying(content), narrow)


@pytest.mark.slow  # it takes all memory that a reader may have
def test_a_row_that_takes_all_memory_ends_the_reader_alone(bomb: bytes) -> None:
    """Its metadata announce next to nothing: a dictionary of one number, and how often it comes."""
    readers = Readers(MIB)
    with pytest.raises(PayloadTooLargeError, match=rf"of {len(bomb)} bytes took more than \d+ b"):
        readers.read(bomb, WIDE)
    assert len(readers.read(_parquet(10), WIDE).record_ids) == 10


def test_too_many_rows_are_refused_with_both_numbers() -> None:
    narrow = array_schema(1, "uint8", subjects=False)
    columns = {
        "record_id": pa.array(np.arange(MAX_ROWS + 1)),
        "label": pa.array(np.zeros(MAX_ROWS + 1, np.int8)),
        "features": _zeros(MAX_ROWS + 1, 1),
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    with pytest.raises(
        PayloadTooLargeError, match=f"{MAX_ROWS + 1} rows or more; the limit is {MAX_ROWS}"
    ):
        Readers(512 * MIB).read(sink.getvalue(), narrow)


PICTURES = TableSchema.of({"picture": "binary"}, record_id="id")


def _pictures(*pictures: bytes) -> bytes:
    sink = io.BytesIO()
    ids = [str(i) for i in range(len(pictures))]
    pq.write_table(pa.table({"id": ids, "picture": pictures}), sink)
    return sink.getvalue()


def test_large_cells_are_read_in_parts_that_fit() -> None:
    pictures = [bytes([i]) * MIB + os.urandom(MIB) for i in range(40)]
    upload = Readers(128 * MIB).read(_pictures(*pictures), PICTURES)
    assert upload.content["picture"].to_pylist() == pictures


def test_repeated_cells_that_unpack_to_too_much_are_refused() -> None:
    """A dictionary of one picture: a hundred of them take as much room as one."""
    content = _pictures(*[os.urandom(1) * MIB] * 100)
    assert len(content) < 2 * MIB
    with pytest.raises(PayloadTooLargeError):
        Readers(16 * MIB).read(content, PICTURES)


def _children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "app.registry.datasets.decoder" in line_of(child)
    ]


def test_a_reader_inherits_nothing_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPUNGE_S3_SECRET_KEY", "4711-secret")
    others = set(_children())
    readers = Readers(8 * MIB)
    features = readers.read(_parquet(10), WIDE).content["features"]
    assert (len(features), features.type.list_size) == (10, 1024)
    (reader,) = set(_children()) - others

    assert not any(name.startswith("EXPUNGE") for name in reader.environ())
    assert len(list(Path(f"/proc/{reader.pid}/fd").iterdir())) < 8
    limits = Path(f"/proc/{reader.pid}/limits").read_text()
    (core,) = (line.split()[-3:-1] for line in limits.splitlines() if "core file" in line)
    assert max(map(int, core)) <= 1

    assert readers.read(_parquet(10), WIDE).record_ids[0].as_py() == "r0"
    assert set(_children()) - others == {reader}  # it reads the next one, too
    readers._idle.pop().end()
    assert set(_children()) == others


def test_a_reader_that_was_killed_meanwhile_is_replaced() -> None:
    readers = Readers(8 * MIB)
    readers.read(_parquet(10), WIDE)
    readers._idle[0]._process.kill()
    readers._idle[0]._process.wait()
    assert len(readers.read(_parquet(10), WIDE).record_ids) == 10


def test_faults_are_told_without_what_a_record_holds() -> None:
    content = _parquet(2, pa.array([[4242.25] * 1024, [float("nan")] * 1024]))
    with pytest.raises(InvalidRecordsError) as caught:
        Readers(8 * MIB).read(content, WIDE)
    (problem,) = caught.value.problems
    assert (problem.row, problem.column) == (1, "features")
    assert "4242" not in str(caught.value)


@pytest.mark.slow
def test_the_api_says_413_and_stays_small(api: TestClient, workshop: Workshop, bomb: bytes) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    answer = api.put(f"/v1/datasets/{DATASET}/records", content=bomb)

    assert answer.status_code == 413
    assert answer.json()["type"] == "urn:expunge:problem:payload-too-large"
    assert f"{len(bomb)} bytes took more than {512 * MIB} bytes" in answer.json()["detail"]
    assert process.memory_info().rss - before < 200 * MIB

"""Shards keep records exactly, in little room, and lose those that are erased."""

import numpy as np
import pyarrow as pa
import pytest

from app.domain.errors import CorruptObjectError
from app.registry.datasets.shards import pack, seqs_of_shard, unpack, unpacked, without_rows
from tests.support.shards import decode_shard, encode_shard

SEQS = np.arange(1000, 1600, dtype=np.int64)
LABELS = SEQS % 7


def features(dtype: str = "float32") -> np.ndarray:
    generator = np.random.default_rng(17)
    return np.repeat(generator.integers(0, 200, (len(SEQS), 4)).astype(dtype), 32, axis=1)


def shard(dtype: str = "float32") -> bytes:
    return encode_shard(seqs=SEQS, labels=LABELS, features=features(dtype))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "int32", "int64"])
def test_records_come_back_as_they_were(dtype: str) -> None:
    seqs, labels, values = decode_shard(shard(dtype))
    np.testing.assert_array_equal(seqs, SEQS)
    np.testing.assert_array_equal(labels, LABELS)
    np.testing.assert_array_equal(values, features(dtype))
    assert values.dtype == dtype


def test_what_repeats_takes_little_room() -> None:
    assert len(shard()) < features().nbytes / 4


def test_erased_rows_are_gone_and_the_others_stay() -> None:
    left = without_rows(shard(), SEQS[::2].tolist())
    seqs, labels, values = decode_shard(left)
    np.testing.assert_array_equal(seqs, SEQS[1::2])
    np.testing.assert_array_equal(labels, LABELS[1::2])
    np.testing.assert_array_equal(values, features()[1::2])
    content, erased = b"".join(unpacked(left)), features()[0].tobytes()
    assert erased not in content
    assert erased in b"".join(unpacked(shard()))


def test_a_shard_without_rows_is_still_one() -> None:
    empty = without_rows(shard(), SEQS.tolist())
    assert len(seqs_of_shard(empty)) == 0
    assert decode_shard(empty)[2].shape == (0, 128)


def test_seqs_are_read_alone() -> None:
    np.testing.assert_array_equal(seqs_of_shard(shard()), SEQS)


def test_of_some_columns_nothing_else_is_unpacked() -> None:
    rows = pa.table({"age": LABELS, "seq": LABELS + 1, "note": pa.array(["x"] * len(SEQS))})
    columns = pa.schema([("age", pa.int64()), ("seq", pa.int64())])
    seqs, found = unpack(pack(SEQS, rows), columns)
    np.testing.assert_array_equal(seqs, SEQS)
    assert found.equals(rows.select(["age", "seq"]))


@pytest.mark.parametrize(
    ("stored", "today", "read"),
    [
        (pa.int16(), pa.int64(), pa.int64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.int64(), pa.int16(), pa.int64()),  # by a reader that began before
        (pa.float64(), pa.int64(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float32()),  # whose texts would be others
    ],
)
def test_rows_of_an_altered_dataset_are_read_as_wide_as_it_is(
    stored: pa.DataType, today: pa.DataType, read: pa.DataType
) -> None:
    rows = pa.table({"age": pa.array([*range(len(SEQS) - 1), None], stored)})
    kinds = {"age": today, "name": pa.string(), "pixels": pa.list_(pa.uint8(), 4)}
    _, found = unpack(pack(SEQS, rows), pa.schema(list(kinds.items())))
    assert found.column_names == ["age", "name", "pixels"]
    assert found["age"].type == read
    assert found["age"].to_pylist() == rows["age"].to_pylist()
    assert found["name"].null_count == found["pixels"].null_count == len(SEQS)


@pytest.mark.parametrize("content", [b"", b"record-17", shard()[:-900]])
def test_what_is_no_shard_is_not_searched_in_silence(content: bytes) -> None:
    with pytest.raises(CorruptObjectError):
        list(unpacked(content))

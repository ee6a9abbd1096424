"""Uploads are checked row by row, and refused as a whole."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.domain.errors import InvalidRecordsError
from app.domain.schema import FeatureSchema
from tests.support.layouts import IN_PARQUET, LISTS, TEXTS, decimals
from tests.support.uploads import parse_upload

SCHEMA = FeatureSchema(shape=(2, 2), dtype="float32", offset=0.0, scale=1.0, classes=3)
BYTES = FeatureSchema(shape=(2, 2), dtype="uint8", offset=0.0, scale=1.0, classes=3)
TOKENS = FeatureSchema(shape=(2, 2), dtype="int64", offset=0.0, scale=1.0, classes=3, vocabulary=13)
ROWS = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 10.0, 11.0, 12.0]]
SECRET = "4242.25"


def _parquet(**columns: object) -> bytes:
    table: dict[str, object] = {
        "record_id": ["a", "b", "c"],
        "label": [0, 1, 2],
        "features": pa.array(ROWS),
    }
    table |= columns
    sink = io.BytesIO()
    pq.write_table(pa.table({k: v for k, v in table.items() if v is not None}), sink)
    return sink.getvalue()


def _rows(row: int, changed: object) -> pa.Array:
    rows: list[object] = list(ROWS)
    rows[row] = changed
    return pa.array(rows, pa.list_(pa.float64()))


def _invalid_utf8() -> pa.Array:
    offsets = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]
    return pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"a\xffc"))


def _permuted() -> pa.Array:
    kind = pa.fixed_shape_tensor(pa.float64(), (2, 2), permutation=[1, 0])
    return pa.ExtensionArray.from_storage(kind, pa.array(ROWS, pa.list_(pa.float64(), 4)))


@pytest.mark.parametrize(
    ("columns", "schema", "row", "column", "reason"),
    [
        ({"features": _rows(1, [1, 2, 13, 0])}, TOKENS, 1, "features", "from 0 to 12"),
        ({"features": _rows(2, [1, -1, 2, 0])}, TOKENS, 2, "features", "from 0 to 12"),
        ({"features": _rows(0, [1, 2.5, 2, 0])}, TOKENS, 0, "features", "from 0 to 12"),
        ({"record_id": ["a", None, "c"]}, SCHEMA, 1, "record_id", "is missing"),
        ({"record_id": ["a", "b", "a"]}, SCHEMA, 2, "record_id", "same as in row 0"),
        ({"record_id": ["a", "", "c"]}, SCHEMA, 1, "record_id", "is missing"),
        ({"record_id": ["a", "b", "x" * 513]}, SCHEMA, 2, "record_id", "at most 512"),
        ({"record_id": [1.0, 1.5, 2.0]}, SCHEMA, 1, "record_id", "not whole"),
        ({"record_id": [1.0, 2.0, 2.0**53]}, SCHEMA, 2, "record_id", "too large"),
        ({"record_id": [True, False, None]}, SCHEMA, None, "record_id", "text or whole numbers"),
        ({"record_id": ["1", "2", "1e5"]}, SCHEMA, 2, "record_id", "exponent"),
        ({"record_id": ["1", "2", "2.0"]}, SCHEMA, 2, "record_id", "same as in row 1"),
        ({"record_id": _invalid_utf8()}, SCHEMA, None, "record_id", "UTF-8"),
        ({"record_id": None}, SCHEMA, None, "record_id", "exactly once"),
        ({"subject_id": ["s", "9.1e15", None]}, SCHEMA, 1, "subject_id", "exponent"),
        ({"label": [0, None, 2]}, SCHEMA, 1, "label", "is null"),
        ({"label": [0, 1, 3]}, SCHEMA, 2, "label", "between 0 and 2"),
        ({"label": [0, -1, 2]}, SCHEMA, 1, "label", "between 0 and 2"),
        ({"label": pa.array([0, 1, 2**64 - 1], pa.uint64())}, SCHEMA, 2, "label", "between"),
        ({"label": decimals(["0", "1", "0.5"], pa.decimal128(5, 2))}, SCHEMA, None, "label",
         "must be an integer column"),
        ({"record_id": decimals(["1", "2", "0.5"], pa.decimal128(5, 2))}, SCHEMA, 2, "record_id",
         "not whole"),
        ({"label": [0.0, 1.0, 2.0]}, SCHEMA, None, "label", "integer column"),
        ({"features": _rows(1, [1.0])}, SCHEMA, 1, "features", "4 elements"),
        ({"features": _rows(2, None)}, SCHEMA, 2, "features", "4 elements"),
        ({"features": _rows(1, [1.0, None, 3.0, 4.0])}, SCHEMA, 1, "features", "contains null"),
        ({"features": _rows(0, [1.0, 2.0, float("nan"), 4.0])}, SCHEMA, 0, "features", "finite"),
        ({"features": _rows(0, [1.0, 2.0, 1e300, 4.0])}, SCHEMA, 0, "features", "finite float32"),
        ({"features": _rows(2, [1.0, 2.5, 3.0, 4.0])}, BYTES, 2, "features", "whole numbers"),
        ({"features": _rows(2, [1.0, 256.0, 3.0, 4.0])}, BYTES, 2, "features", "0 to 255"),
        ({"features": _rows(2, [1.0, -1.0, 3.0, 4.0])}, BYTES, 2, "features", "0 to 255"),
        ({"features": [1.0, 2.0, 3.0]}, SCHEMA, None, "features", "list or tensor"),
        ({"features": _permuted()}, SCHEMA, None, "features", "C order"),
        ({"Zoë Ng": ["x", "y", "z"]}, SCHEMA, None, "number 4", "unknown column"),
    ],
)  # fmt: skip
def test_a_fault_is_named_by_row_and_column(
    columns: dict, schema: FeatureSchema, row: int | None, column: str, reason: str
) -> None:
    with pytest.raises(InvalidRecordsError) as caught:
        parse_upload(_parquet(**columns), schema)

    (problem,) = caught.value.problems
    assert (problem.row, problem.column) == (row, column)
    assert reason in problem.reason
    assert caught.value.count == 1


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"PAR1" * 100])
def test_an_unreadable_file_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRecordsError, match="not a readable Parquet"):
        parse_upload(content, SCHEMA)


def test_a_file_without_rows_is_refused() -> None:
    empty = _parquet(
        record_id=pa.array([], pa.string()),
        label=pa.array([], pa.int64()),
        features=pa.array([], pa.list_(pa.float64())),
    )
    with pytest.raises(InvalidRecordsError, match="no rows"):
        parse_upload(empty, SCHEMA)


def test_a_fault_of_many_rows_is_told_once_with_their_number() -> None:
    content = _parquet(
        record_id=[f"r{i}" for i in range(50)],
        label=[7] * 50,
        features=pa.array([ROWS[0]] * 49 + [[1.0, 2.0, float("inf"), 4.0]]),
    )

    with pytest.raises(InvalidRecordsError) as caught:
        parse_upload(content, SCHEMA)

    assert caught.value.count == 51
    told = [(problem.row, problem.column, problem.rows) for problem in caught.value.problems]
    assert told == [(0, "label", 50), (49, "features", 1)]


def test_rows_of_later_parts_have_their_numbers_in_the_file(monkeypatch) -> None:
    monkeypatch.setattr("app.registry.datasets.uploads._MAX_PART_ROWS", 2)
    rows = pa.array([ROWS[0]] * 4 + [[1.0, 2.0, float("inf"), 4.0]])
    content = _parquet(record_id=["a", "b", "c", "b", "d"], label=[0, 1, 2, 0, 1], features=rows)

    with pytest.raises(InvalidRecordsError) as caught:
        parse_upload(content, SCHEMA)

    told = [(each.row, each.column, each.reason[-8:]) for each in caught.value.problems]
    assert told == [(3, "record_id", "in row 1"), (4, "features", " numbers")]


def test_no_message_holds_what_a_record_holds() -> None:
    value = float(SECRET)
    faulty = _rows(1, [value, float("nan"), value, value])

    with pytest.raises(InvalidRecordsError) as caught:
        parse_upload(_parquet(record_id=["me", "me", "me"], features=faulty), SCHEMA)

    told = str(caught.value) + repr(caught.value.problems)
    assert SECRET not in told
    assert "'me'" not in told


@pytest.mark.parametrize(
    "features",
    [
        pa.array(ROWS),
        pa.array(ROWS, pa.large_list(pa.float32())),
        pa.array(ROWS, pa.list_(pa.float64(), 4)),
        pa.array([[int(x) for x in row] for row in ROWS], pa.list_(pa.int16())),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.array(ROWS).reshape(3, 2, 2)),
    ],
    ids=["list", "large-list", "fixed-size-list", "integers", "tensor"],
)
@pytest.mark.parametrize("schema", [SCHEMA, BYTES], ids=["float32", "uint8"])
def test_every_kind_of_feature_column_is_read_alike(
    features: pa.Array, schema: FeatureSchema
) -> None:
    upload = parse_upload(_parquet(features=features), schema)

    assert str(upload.content["features"].type.value_type) == schema.dtype.replace(
        "float32", "float"
    )
    assert upload.content["features"].to_pylist() == ROWS


def test_integer_ids_are_spelt_in_decimal_and_subjects_may_be_missing() -> None:
    upload = parse_upload(_parquet(record_id=[1, 2, 3], subject_id=["s", None, "s"]), SCHEMA)

    assert upload.record_ids == ["1", "2", "3"]
    assert upload.subject_ids == ["s", None, "s"]
    assert upload.content["label"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("layout", IN_PARQUET)
def test_any_layout_of_ids_is_read(layout: str) -> None:
    ids, people = (TEXTS[layout](cells) for cells in (["a", "b", "c"], ["x", None, "x"]))
    upload = parse_upload(_parquet(record_id=ids, subject_id=people), SCHEMA)
    assert (upload.record_ids, upload.subject_ids) == (["a", "b", "c"], ["x", None, "x"])


@pytest.mark.parametrize("layout", ["large", "view", "large view"])
@pytest.mark.parametrize("item", [pa.float32(), pa.decimal64(7, 2)], ids=str)
def test_any_layout_of_features_is_read(layout: str, item: pa.DataType) -> None:
    rows = ROWS if item == pa.float32() else [decimals(row, item) for row in ROWS]
    whole = decimals([0, 1, 2], pa.decimal32(4, 2))
    features = pa.array(rows, LISTS[layout](item))
    upload = parse_upload(_parquet(record_id=whole, label=whole, features=features), SCHEMA)
    assert upload.record_ids == ["0", "1", "2"]
    assert upload.content["label"].to_pylist() == [0, 1, 2]
    assert upload.content["features"].to_pylist() == ROWS

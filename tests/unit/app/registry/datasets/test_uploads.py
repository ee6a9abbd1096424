"""Uploads are checked row by row, and refused as a whole."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.domain.errors import InvalidRecordsError
from app.domain.schema import TableSchema
from tests.support.arrays import array_schema
from tests.support.layouts import IN_PARQUET, TEXTS, decimals
from tests.support.uploads import parse_upload

SCHEMA = array_schema(4, subjects=False)
PEOPLE = array_schema(4)
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


@pytest.mark.parametrize(
    ("columns", "schema", "row", "column", "reason"),
    [
        ({"record_id": ["a", None, "c"]}, SCHEMA, 1, "record_id", "is missing"),
        ({"record_id": ["a", "b", "a"]}, SCHEMA, 2, "record_id", "same as in row 0"),
        ({"record_id": ["a", "", "c"]}, SCHEMA, 1, "record_id", "is missing"),
        ({"record_id": ["a", "b", "x" * 513]}, SCHEMA, 2, "record_id", "at most 512"),
        ({"record_id": [1.0, 1.5, 2.0]}, SCHEMA, 1, "record_id", "not whole"),
        ({"record_id": [1.0, 2.0, 2.0**53]}, SCHEMA, 2, "record_id", "too large"),
        ({"record_id": [True, False, None]}, SCHEMA, None, "record_id", "text or a whole number"),
        ({"record_id": ["1", "2", "1e5"]}, SCHEMA, 2, "record_id", "exponent"),
        ({"record_id": ["1", "2", "2.0"]}, SCHEMA, 2, "record_id", "same as in row 1"),
        ({"record_id": _invalid_utf8()}, SCHEMA, None, "record_id", "UTF-8"),
        ({"record_id": None}, SCHEMA, None, "record_id", "no such column"),
        ({"subject_id": ["s", "9.1e15", None]}, PEOPLE, 1, "subject_id", "exponent"),
        ({}, PEOPLE, None, "subject_id", "no such column"),
        ({"label": [0, None, 2]}, SCHEMA, 1, "label", "is missing"),
        ({"label": [0, 1, 2.5]}, SCHEMA, 2, "label", "not int64 without loss"),
        ({"label": pa.array([0, 1, 2**64 - 1], pa.uint64())}, SCHEMA, 2, "label", "not int64"),
        ({"record_id": decimals(["1", "2", "0.5"], pa.decimal128(5, 2))}, SCHEMA, 2, "record_id",
         "not whole"),
        ({"features": _rows(1, [1.0])}, SCHEMA, 1, "features", "has not 4 items"),
    ],
)  # fmt: skip
def test_a_fault_is_named_by_row_and_column(
    columns: dict, schema: TableSchema, row: int | None, column: str, reason: str
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
        label=[0.5] * 50,
        features=pa.array([ROWS[0]] * 49 + [[1.0, 2.0, float("inf"), 4.0]]),
    )

    with pytest.raises(InvalidRecordsError) as caught:
        parse_upload(content, SCHEMA)

    assert caught.value.count == 51
    told = [(problem.row, problem.column, problem.rows) for problem in caught.value.problems]
    assert sorted(told) == [(0, "label", 50), (49, "features", 1)]


def test_rows_of_later_parts_have_their_numbers_in_the_file(monkeypatch) -> None:
    monkeypatch.setattr("app.registry.datasets.uploads._MAX_PART_ROWS", 2)
    rows = pa.array([ROWS[0]] * 4 + [[1.0, 2.0, float("inf"), 4.0]])
    content = _parquet(record_id=["a", "b", "c", "b", "d"], label=[0, 1, 2, 0, 1], features=rows)

    with pytest.raises(InvalidRecordsError) as caught:
        parse_upload(content, SCHEMA)

    told = [(each.row, each.column, each.reason[-8:]) for each in caught.value.problems]
    assert told == [(4, "features", "out loss"), (3, "record_id", "in row 1")]


def test_no_message_holds_what_a_record_holds() -> None:
    value = float(SECRET)
    faulty = _rows(1, [value, float("nan"), value, value])

    with pytest.raises(InvalidRecordsError) as caught:
        parse_upload(_parquet(record_id=["me", "me", "me"], features=faulty), SCHEMA)

    told = str(caught.value) + repr(caught.value.problems)
    assert SECRET not in told
    assert "'me'" not in told


def test_integer_ids_are_spelt_in_decimal_and_subjects_may_be_missing() -> None:
    upload = parse_upload(_parquet(record_id=[1, 2, 3], subject_id=["s", None, "s"]), PEOPLE)

    assert upload.record_ids.to_pylist() == ["1", "2", "3"]
    assert upload.subject_ids.to_pylist() == ["s", None, "s"]
    assert upload.content["label"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("layout", IN_PARQUET)
def test_any_layout_of_ids_is_read(layout: str) -> None:
    ids, people = (TEXTS[layout](cells) for cells in (["a", "b", "c"], ["x", None, "x"]))
    upload = parse_upload(_parquet(record_id=ids, subject_id=people), PEOPLE)
    assert upload.record_ids.to_pylist() == ["a", "b", "c"]
    assert upload.subject_ids.to_pylist() == ["x", None, "x"]

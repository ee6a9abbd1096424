"""Columns become their declared types, without loss or not at all; errors show no values."""

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import InvalidRecordsError
from app.domain.schema import MOST_CELL_BYTES, WIDTHS, TableSchema
from app.registry.datasets.columns import typed
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.typed import arrow_schema, typed_rows
from tests.support.layouts import TEXTS, decimals

SECRET = "4242"
DAY = dt.date(2026, 1, 2)
NOON = dt.datetime(2026, 1, 2, 12, 30, 15, 250000)  # noqa: DTZ001 - in UTC, as it is kept
NAN = float("nan")


def read(kind: str, cells: Any) -> list:
    """Return what becomes of the cells of a column that is declared as ``kind``."""
    column = cells if isinstance(cells, pa.Array | pa.ChunkedArray) else pa.array(cells)
    table = pa.table({"id": [str(i) for i in range(len(column))], "x": column, "more": column})
    schema = TableSchema.of({"x": kind}, record_id="id")
    problems = Problems()
    rows = typed_rows(table, schema, problems)
    problems.raise_any()
    rows.validate(full=True)
    assert rows.schema == arrow_schema(schema)
    return rows["x"].to_pylist()


def dictionary(*cells: str) -> pa.Array:
    return pa.array(cells).dictionary_encode()


@pytest.mark.parametrize(
    ("kind", "cells", "expected"),
    [
        ("int8", [1, -128], [1, -128]),
        ("int8", [1.0, -7.0], [1, -7]),
        ("int32", ["12", " -3 ", "+4", "5.0"], [12, -3, 4, 5]),
        ("int32?", [1.0, NAN, None], [1, None, None]),
        ("int32?", ["1", "", "NA", None], [1, None, None, None]),
        ("uint64", pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        ("float16", [0.5, 2048.0], [0.5, 2048.0]),
        ("float32", [2**24, 2**25 + 4], [2**24, 2**25 + 4]),
        ("float32", ["0.1", "1e3"], [float(np.float32(0.1)), 1000.0]),
        ("float64", ["0.1"], [0.1]),
        ("float64?", [0.1, NAN], [0.1, None]),
        ("bool", [True, False], [True, False]),
        ("bool", [1, 0], [True, False]),
        ("bool?", ["True", "0", None], [True, False, None]),
        ("string", ["a", ""], ["a", ""]),
        ("string", dictionary("a", "b", "a"), ["a", "b", "a"]),
        ("string", pa.array(["a"], pa.large_string()), ["a"]),
        ("string", [12, -3], ["12", "-3"]),
        ("string?", pa.nulls(2), [None, None]),
        ("binary", [b"\xff\xd8", b""], [b"\xff\xd8", b""]),
        ("binary", pa.array([b"abcd"], pa.binary(4)), [b"abcd"]),
        ("date", [DAY], [DAY]),
        ("date", pa.array([DAY], pa.date64()), [DAY]),
        ("date?", ["2026-01-02", ""], [DAY, None]),
        ("timestamp", [NOON], [NOON]),
        ("timestamp", pa.array([NOON], pa.timestamp("ns")), [NOON]),
        ("timestamp", pa.array([NOON], pa.timestamp("ms", "Europe/Paris")), [NOON]),
        ("timestamp", ["2026-01-02 12:30:15.25", "2026-01-02T13:30:15.25+01:00"], [NOON, NOON]),
        ("timestamp", ["2026-01-02T12:30:15.25Z"], [NOON]),
        ("list<int32>", [[1, 2], [], [3]], [[1, 2], [], [3]]),
        ("list<int32>?", [[1, 2], None, [3]], [[1, 2], None, [3]]),
        ("list<int32>?", pa.nulls(2), [None, None]),
        ("list<string>", [["a"], ["b", ""]], [["a"], ["b", ""]]),
        ("list<float32, 2>", [[1.0, 2.5], [3, 4]], [[1.0, 2.5], [3.0, 4.0]]),
        ("list<float32, 2>?", [[1.0, 2.5], None, [3, 4]], [[1.0, 2.5], None, [3.0, 4.0]]),
        ("list<float32, 2>?", pa.array([[1.0, 2], None], pa.list_(pa.float64(), 2)),
         [[1.0, 2.0], None]),
        ("list<uint8, 4>", pa.FixedShapeTensorArray.from_numpy_ndarray(np.eye(2)[None].copy()),
         [[1, 0, 0, 1]]),
        ("list<int8>", pa.array([[1, 2]], pa.large_list(pa.int64())), [[1, 2]]),
        ("int8", pa.chunked_array([[1], [2]]), [1, 2]),
        ("int32", decimals([5, -7], pa.decimal128(9, 2)), [5, -7]),
        ("string", decimals([5, 10**30], pa.decimal256(50, 2)), ["5", str(10**30)]),
        ("float64", decimals(["5.5", "-0.1"], pa.decimal32(5, 2)), [5.5, -0.1]),
        ("list<int8>", pa.array([[1], [2, 3]], pa.list_view(pa.decimal128(5, 2))), [[1], [2, 3]]),
        ("list<float64, 1>", pa.array([["0.5"]], pa.list_(pa.string_view(), 1)), [[0.5]]),
        ("list<string>", pa.array([["a"]], pa.large_list_view(pa.string_view())), [["a"]]),
        ("binary", pa.array([b"a"]).cast(pa.binary_view()), [b"a"]),
        ("date", TEXTS["runs of views"](["2026-01-02"]), [DAY]),
        ("int32?", TEXTS["dictionary of views"](["12", "NA", "12"]), [12, None, 12]),
    ],
)  # fmt: skip
def test_what_fits_becomes_its_type(kind: str, cells: Any, expected: list) -> None:
    assert read(kind, cells) == expected


@pytest.mark.parametrize(
    ("kind", "cells", "row", "reason"),
    [
        ("int8", [1, 4242], 1, "a whole number that is not int8 without loss"),
        ("uint8", [1, -4242], 1, "not uint8 without loss"),
        ("int32", [1.0, 4242.5], 1, "not int32 without loss"),
        ("int64", [1.0, 2.0**63], 1, "not int64 without loss"),
        ("int32", ["1", "4242x"], 1, "text that is not int32 without loss"),
        ("int32", ["1", "4242.5"], 1, "text that is not int32"),
        ("int32", ["1", "+-4242"], 1, "text that is not int32"),
        ("float16", [1, 2049], 1, "not float16"),
        ("float16", [1.0, 1e6], 1, "not float16"),
        ("float32", [0.5, 0.1], 1, "a number that is not float32 without loss"),
        ("float32", [0.5, 1e300], 1, "not float32"),
        ("float64", [0, 2**53 + 1], 1, "not float64"),
        ("float64", [0.5, math.inf], 1, "not float64"),
        ("float64", ["0.5", "inf"], 1, "not float64"),
        ("float32", ["0.5", "1e300"], 1, "not float32"),
        ("bool", [1, 4242], 1, "not bool"),
        ("bool", ["yes"], 0, "not bool"),
        ("date", ["2026-01-02", "4242-13-01"], 1, "not date"),
        ("timestamp", ["4242"], 0, "not timestamp"),
        ("timestamp", pa.array([1001], pa.timestamp("ns")), 0, "not timestamp"),
        ("int32", [1, None], 1, "is missing, and int32 must be there"),
        ("float64", [1.0, NAN], 1, "is missing"),
        ("string", ["a", None], 1, "is missing"),
        ("list<int32>", [[1], None], 1, "is missing"),
        ("list<int32>", [[1], [2, None]], 1, "an item is missing"),
        ("list<float64>", [[1.0], [NAN]], 1, "an item is missing"),
        ("list<int8>", [[1], [2, 4242]], 1, "an item is a whole number that is not int8"),
        ("list<int32, 2>", [[1, 2], [4242]], 1, "has not 2 items"),
        ("list<int32, 2>", [[1, 2], []], 1, "has not 2 items"),
        ("string", ["a" * (MOST_CELL_BYTES + 1)], 0, "bytes"),
        ("list<float64>", [[0.0] * (MOST_CELL_BYTES // 8 + 1)], 0, "bytes"),
        ("int32", pa.array([DAY]), None, "a date, where int32 is expected"),
        ("string", [1.5], None, "a number, where string is expected"),
        ("binary", ["4242"], None, "text, where binary is expected"),
        ("string", [b"4242"], None, "bytes, where string is expected"),
        ("int32", [[4242]], None, "a list, where int32 is expected"),
        ("list<int32>", [4242], None, "a whole number, where list<int32> is expected"),
        ("list<int32>", [["4242x"]], 0, "an item is text that is not int32"),
        ("list<int32>", [[[4242]]], None, "where list<int32> is expected"),
        ("timestamp", [DAY], None, "where timestamp is expected"),
        ("date", [NOON], None, "a date and time, where date is expected"),
        ("date", pa.array([0, 4242]).view(pa.date64()), None,
         "a date, with cells that its type date64[ms] does not allow, where date is expected"),
        ("timestamp", pa.array([0, 4242]).view(pa.date64()), None,
         "that its type date64[ms] does not allow, where timestamp is expected"),
        ("timestamp", pa.array([0], pa.time64("us")), None,
         "a time of day, where timestamp is expected"),
        ("string", pa.array([-1]).view(pa.time64("ns")), None,
         "a time of day, with cells that its type time64[ns] does not allow, where string"),
        ("int64", pa.array([4242], pa.duration("s")), None,
         "a span of time, where int64 is expected"),
        ("list<int32>", pa.ListArray.from_arrays([0, 1], pa.array([4242]).view(pa.date64())), None,
         "that its type list<item: date64[ms]> does not allow, where list<int32> is expected"),
        ("int32", decimals(["1", "4242.5"], pa.decimal128(9, 2)), 1, "a number that is not int32"),
        ("string", decimals(["4242.5"], pa.decimal128(9, 2)), None, "where string is expected"),
        ("string", [{"a": 4242}], None, "a group of fields, where string is expected"),
        ("string", pa.array([b"\xff4242"]).view(pa.string()), None, "must be UTF-8 text"),
        ("list<string>", pa.ListArray.from_arrays(
            [0, 1], pa.array([b"\xff4242"]).view(pa.string())), None, "must be UTF-8 text"),
    ],
)  # fmt: skip
def test_what_would_lose_something_is_refused(
    kind: str, cells: Any, row: int | None, reason: str
) -> None:
    with pytest.raises(InvalidRecordsError) as refused:
        read(kind, cells)
    (problem,) = refused.value.problems
    assert (problem.row, problem.column, problem.rows) == (row, "x", 1)
    assert reason in problem.reason
    assert SECRET not in str(refused.value)


def test_all_faulty_rows_are_counted() -> None:
    cells = [0.1 if i % 3 == 0 else 0.5 for i in range(100)]
    with pytest.raises(InvalidRecordsError) as refused:
        read("float32", cells)
    assert (refused.value.problems[0].row, refused.value.count) == (0, 34)
    texts = ["x" if i % 3 == 0 else "7" for i in range(100)]
    with pytest.raises(InvalidRecordsError) as refused:
        read("int32", texts)
    assert (refused.value.problems[0].row, refused.value.count) == (0, 34)


@pytest.mark.parametrize("kind", ["int8", "int64", "uint8"])
@pytest.mark.parametrize("text", ["0x1F", "0XFF"])
def test_no_text_is_read_as_hexadecimal(kind: str, text: str) -> None:
    """As a byte with a sign, 0xFF would even be -1."""
    with pytest.raises(InvalidRecordsError, match=f"text that is not {kind}"):
        read(kind, [text])


@pytest.mark.parametrize("kind", ["int64", "date", "timestamp"])
def test_many_texts_of_another_form_cost_one_conversion(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one for each: dates of another country in every row, say."""
    calls = []
    whole = typed._checked

    def counted(column: pa.Array, cast: typed.Cast) -> tuple[pa.Array, typed.Marks]:
        calls.append(len(column))
        return whole(column, cast)

    monkeypatch.setattr(typed, "_checked", counted)
    with pytest.raises(InvalidRecordsError, match="1000 problem"):
        read(kind, ["31.12.2026"] * 1000)
    assert calls == [1000]


@pytest.mark.parametrize("names", [["id", "x"], ["id", "x", "y", "y"], ["x", "y"]])
def test_columns_must_be_there_once(names: list[str]) -> None:
    table = pa.table([pa.array(["1"])] * len(names), names=names)
    problems = Problems()
    schema = TableSchema.of({"x": "string", "y": "string"}, record_id="id")
    typed_rows(table, schema, problems)
    with pytest.raises(InvalidRecordsError, match=r"no such column|occurs twice"):
        problems.raise_any()


def test_a_column_that_may_be_without_values_may_be_missing() -> None:
    schema = TableSchema.of(
        {"x": "string", "y": "int16?", "z": "list<float32, 2>?"}, record_id="id"
    )
    rows = typed_rows(pa.table({"id": ["a", "b"], "x": ["1", "2"]}), schema, problems := Problems())
    problems.raise_any()
    assert rows["y"].null_count == rows["z"].null_count == 2


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(width=64),
    st.floats(width=32),
    st.integers(-300, 300).map(float),
)


@given(kind=st.sampled_from(sorted(WIDTHS)), cells=st.lists(NUMBERS, min_size=1, max_size=8))
def test_a_number_is_kept_exactly_or_refused(kind: str, cells: list) -> None:
    """Each cell by itself: it comes out with the same value, or an error names its row."""
    for cell in cells:
        source = pa.float64() if isinstance(cell, float) else pa.int64()
        if isinstance(cell, int) and cell >= 2**63:
            source = pa.uint64()
        try:
            (found,) = read(f"{kind}?", pa.array([cell], source))
        except InvalidRecordsError:
            assert not _is_exact(cell, kind)
        else:
            assert (found is None and cell != cell) or found == cell  # noqa: PLR0124 - NaN


def _is_exact(cell: float, kind: str) -> bool:
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            as_kind = np.float64(cell).astype(dtype)
        within = isinstance(cell, float) or abs(cell) <= 2**53
        return within and bool(np.isfinite(as_kind)) and float(as_kind) == cell
    limits = np.iinfo(dtype)
    return math.isfinite(cell) and cell == int(cell) and limits.min <= int(cell) <= limits.max

"""Ids that are plain are taken as they are; all others as each of them is read alone."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import InvalidRecordsError
from app.domain.ids import Notation, id_fault, normal_id
from app.registry.datasets.columns.cells import notations_of
from app.registry.datasets.columns.encoding import ids_of
from app.registry.datasets.columns.problems import Problems

WORDS = st.sampled_from(["NA", "", " ", "a ", "a\x1f", "é", "e\u0301", "a\u00a0", "x" * 513, "m-1"])
NUMBERS = st.from_regex(r"\A[ +-]?[0-9]{0,17}\.?0{0,2}(e[+-]?[0-9])?\Z")


def read(ids, *, required=False):
    problems = Problems()
    table = pa.table({"id": pa.array(ids, pa.string())})
    found = ids_of(table, "id", problems, required=required)
    return found.to_pylist(), problems


@given(st.lists(WORDS | NUMBERS | st.text(max_size=4) | st.none(), max_size=5))
def test_each_is_read_by_itself(ids):
    found, problems = read(ids)
    expected = [None if each is None else normal_id(each) for each in ids]
    expected = [each or None for each in expected]  # NA is an id like any other
    assert found == expected
    assert problems.none == all(each is None or id_fault(each) is None for each in expected)


@pytest.mark.parametrize("ids", [["a", None], ["a", " "], ["a", ""]])
def test_a_missing_one_is_a_fault_where_there_must_be_one(ids):
    assert not read(ids, required=True)[1].none
    assert read(ids)[1].none


@pytest.mark.parametrize(
    "column",
    [
        pa.array([5, None], pa.int8()),
        pa.array([5, None], pa.uint64()),
        pa.array([5.0, None], pa.float32()),
        pa.array([5.0, float("nan")]),
        pa.array([Decimal("5.00"), None]),
        pa.array(["5.00", ""]),
        pa.array([" +5", None], pa.large_string()),
        pa.array(["5.", None]).dictionary_encode(),
    ],
)
def test_a_whole_number_is_its_digits_whatever_brought_it(column):
    problems = Problems()
    found = ids_of(pa.table({"id": column}), "id", problems, required=False)
    assert problems.none
    assert found.to_pylist() == ["5", None]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([7, 2.0**53]),
        pa.array([7, -(2.0**60)]),
        pa.array([7, 0.5]),
        pa.array([7, float("inf")]),
        pa.array([7, 2.0**24], pa.float32()),
        pa.array([Decimal(7), Decimal("7.5")]),
        pa.array(["7", "9007199254740993.0"]),
        pa.array(["7", "9.00719925474099e+15"]),
        pa.array(["7", "1E5"]),
        pa.array(["7", "a\0"]),
    ],
)
def test_what_may_have_lost_digits_is_refused_by_row_and_column(column):
    problems = Problems()
    ids_of(pa.table({"id": column}), "id", problems, required=True)
    with pytest.raises(InvalidRecordsError) as caught:
        problems.raise_any()
    assert [(fault.row, fault.column) for fault in caught.value.problems] == [(1, "id")]


def test_notations_are_told_apart():
    cells = {"7": "digits", " +7 ": "digits", "-0": "digits", "7.0": "point", "007": "zeros"}
    cells |= {"seven": None, "": None, "00.5": None}
    for cell, name in cells.items():
        found = notations_of(pa.array([None, cell]))
        assert found == ({Notation[name.upper()]} if name else set()), cell

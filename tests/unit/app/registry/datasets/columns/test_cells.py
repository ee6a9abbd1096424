"""Cells in any layout of Arrow; those that Arrow itself finds invalid are refused by column."""

import pyarrow as pa
import pytest

from app.domain.columns import (
    CategoryColumn,
    Column,
    ImageColumn,
    InputColumns,
    LabelColumn,
    NumberColumn,
    TextColumn,
)
from app.domain.errors import InvalidRecordsError
from app.registry.datasets.columns.arrays import array_fault
from app.registry.datasets.columns.cells import is_text, plain, texts_of
from app.registry.datasets.columns.encoding import features_of, labels_of, numbers_in
from tests.support import layouts

SECRET = b"\xff4242"
BROKEN = pa.array([b"4", SECRET]).view(pa.string())
"""Not UTF-8: each reader would make something else of it."""
ODD = pa.DictionaryArray.from_arrays(pa.array([0, 0]), BROKEN[1:])
LISTS = pa.ListArray.from_arrays([0, 1, 2], pa.array([4242, 1]).view(pa.date64()))


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (TextColumn(name="x", length=4), BROKEN),
        (TextColumn(name="x", length=4), ODD),
        (NumberColumn(name="x"), BROKEN),
        (CategoryColumn(name="x", values=("4",), other=True), BROKEN),
    ],
    ids=["text", "text of a dictionary", "number", "category"],
)
def test_cells_that_are_no_text_are_no_features(column: Column, cells: pa.Array) -> None:
    with pytest.raises(InvalidRecordsError, match="column 'x': must be UTF-8 text") as refused:
        features_of(pa.table({"x": cells}), InputColumns(columns=(column,)))
    assert "4242" not in str(refused.value)


def test_nor_labels_and_numbers() -> None:
    table = pa.table({"x": BROKEN})
    with pytest.raises(InvalidRecordsError, match="column 'x': must be UTF-8 text"):
        labels_of(table, LabelColumn(name="x", classes=("4", "5")))
    with pytest.raises(InvalidRecordsError, match="column 'x': must be UTF-8 text"):
        numbers_in(table, ["x"])


def test_cells_that_their_type_does_not_allow_are_refused_whatever_is_expected() -> None:
    inputs = InputColumns(columns=(ImageColumn(name="x", shape=(1, 2, 2)),))
    with pytest.raises(InvalidRecordsError, match="column 'x': a list, with cells that its type"):
        features_of(pa.table({"x": LISTS}), inputs)


ROWS = ["a", "a", None, "b", "c"]


@pytest.mark.parametrize("layout", layouts.TEXTS)
def test_a_layout_does_not_change_what_the_cells_are(layout: str) -> None:
    cells = layouts.TEXTS[layout](ROWS)
    pieces = pa.chunked_array([cells, cells.slice(3)])
    assert plain(cells).to_pylist() == ROWS
    assert plain(cells.slice(1, 3)).to_pylist() == ROWS[1:4]
    assert plain(pieces).to_pylist() == ROWS + ROWS[3:]
    assert plain(pieces.slice(6)).to_pylist() == ["c"]
    assert plain(cells.slice(0, 0)).to_pylist() == []
    assert is_text(plain(cells).type)


@pytest.mark.parametrize("layout", layouts.LISTS)
@pytest.mark.parametrize("item", [pa.int8(), pa.decimal128(5, 2)], ids=str)
def test_nor_does_that_of_lists(layout: str, item: pa.DataType) -> None:
    lists = [[1, 2], None, [3, 4], [5, 6]]
    written = [None if each is None else layouts.decimals(each, item) for each in lists]
    if item == pa.int8():
        written = lists
    found = plain(pa.array(written, layouts.LISTS[layout](item)).slice(1))
    assert found.to_pylist() == lists[1:]
    assert layout == "of two" or pa.types.is_integer(found.type.value_type)
    assert array_fault(found.type) is None


@pytest.mark.parametrize("kind", layouts.WHOLE.values(), ids=layouts.WHOLE)
def test_whole_decimals_are_integers(kind: pa.DataType) -> None:
    assert plain(layouts.decimals([10, None, -70], kind)).equals(pa.array([10, None, -70]))


def test_decimals_have_one_spelling() -> None:
    mixed = layouts.decimals(["5", "5.50", "100", "-0.25"], pa.decimal128(9, 2))
    assert texts_of(plain(mixed)).distinct == ("5", "5.5", "100", "-0.25")
    large = layouts.decimals([10**30], pa.decimal128(38, 2))
    assert texts_of(plain(large)).distinct == (str(10**30),)

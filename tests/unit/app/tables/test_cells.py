"""Cells that Arrow itself finds invalid: refused by column, whatever the column becomes."""

import pyarrow as pa
import pytest

from app.domain.columns import (
    CategoryColumn,
    Column,
    ImageColumn,
    InputColumns,
    NumberColumn,
    TextColumn,
)
from app.domain.encoding import LabelColumn
from app.domain.errors import InvalidRecordsError
from app.tables.encoding import features_of, labels_of, numbers_in

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

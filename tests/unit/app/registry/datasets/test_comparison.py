"""Two rows have the same bytes exactly where they have the same values."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.registry.datasets.comparison import equal_rows, rows_as_bytes

TYPES = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16, allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.list_(pa.int32()): st.lists(st.integers(0, 3), max_size=3),
    pa.list_(pa.string()): st.lists(st.text(max_size=2), max_size=3),
    pa.list_(pa.float32(), 2): st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=2),
}


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(data=st.data())
@settings(max_examples=25)
def test_equal_rows_have_equal_bytes_and_others_have_not(
    kind: pa.DataType, data: st.DataObject
) -> None:
    cell = st.none() | TYPES[kind]
    pairs = data.draw(st.lists(st.tuples(cell, cell), min_size=1, max_size=6))
    table = pa.table({name: pa.array([p[i] for p in pairs], kind) for i, name in enumerate("ab")})
    spelt = list(rows_as_bytes(table))
    for one, left in zip(pairs, spelt, strict=True):
        for other, right in zip(pairs, spelt, strict=True):
            assert (left == right) == (one == other)
    columns = [table.select([name]).rename_columns(["a"]) for name in "ab"]
    assert equal_rows(*columns).tolist() == [one == other for one, other in pairs]


def test_the_layout_does_not_count() -> None:
    rows = pa.table({"a": [[1, 2], None, []], "b": ["x", None, ""], "c": [1.5, -0.0, 2.0]})
    laid_out = pa.concat_tables([rows.slice(0, 1), rows.slice(1)])
    assert list(rows_as_bytes(laid_out)) == list(rows_as_bytes(rows))
    assert list(rows_as_bytes(rows.slice(1))) == list(rows_as_bytes(rows))[1:]
    zero = pa.table({"a": np.array([0.0, -0.0])})
    assert len(set(rows_as_bytes(zero))) == 1


def test_rows_are_equal_in_all_columns() -> None:
    one = pa.table({"a": [1.0, None, -0.0, None], "b": [[1], [2], [3], None], "c": list("wxyz")})
    other = pa.table({"a": [1.0, None, 0.0, 0.0], "b": [[1], [9], [3], None], "c": list("wxyz")})
    assert equal_rows(one, other).tolist() == [True, False, True, False]
    joined = pa.concat_tables([other.slice(0, 2), other.slice(2)])
    assert equal_rows(joined, other).all()


def test_neighbours_do_not_run_together() -> None:
    spelt = rows_as_bytes(pa.table({"a": ["ab", "a"], "b": ["c", "bc"]}))
    assert len(set(spelt)) == 2

"""Ids that are plain are taken as they are; all others as each of them is read alone."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.columns import normal_text
from app.tables.encoding import MAX_ID_LENGTH, ids_of
from app.tables.problems import Problems

WORDS = st.sampled_from(["NA", "", " ", "a ", "a\x1f", "é", "e\u0301", "a\u00a0", "x" * 513, "m-1"])


def read(ids, *, required=False):
    problems = Problems()
    table = pa.table({"id": pa.array(ids, pa.string())})
    found = ids_of(table, "id", problems, required=required)
    return found.to_pylist(), problems


@given(st.lists(WORDS | st.text(max_size=4) | st.none(), max_size=5))
def test_each_is_read_by_itself(ids):
    found, problems = read(ids)
    expected = [None if each is None else normal_text(each) for each in ids]
    expected = [each or None for each in expected]  # NA is an id like any other
    assert found == expected
    assert problems.none == all(len(each or "") <= MAX_ID_LENGTH for each in expected)


@pytest.mark.parametrize("ids", [["a", None], ["a", " "], ["a", ""]])
def test_a_missing_one_is_a_fault_where_there_must_be_one(ids):
    assert not read(ids, required=True)[1].none
    assert read(ids)[1].none

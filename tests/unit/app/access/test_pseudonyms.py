"""Many ids are named as each one of them is."""

from hypothesis import given, settings
from hypothesis import strategies as st

from app.access.pseudonyms import Pseudonyms

PSEUDONYMS = Pseudonyms(bytes(range(32)))
IDS = st.lists(st.text(max_size=90) | st.sampled_from(["é", "e\u0301", "a"]), max_size=8)


@given(IDS)
@settings(max_examples=5)
def test_records(ids):
    found = PSEUDONYMS.records("ds_1", ids)
    assert found == [PSEUDONYMS.record("ds_1", each) for each in ids]
    assert set(found).isdisjoint(PSEUDONYMS.records("ds_2", ids))


@given(IDS)
def test_subjects(ids):
    found = PSEUDONYMS.subjects("ds_1", [None, *ids, *ids])
    assert found == [None, *(PSEUDONYMS.subject("ds_1", each) for each in [*ids, *ids])]
    assert set(found).isdisjoint(PSEUDONYMS.records("ds_1", ids))

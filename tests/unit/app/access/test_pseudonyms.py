"""Many ids are named as each one of them is."""

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.access.pseudonyms import Pseudonyms
from app.domain.ids import normal_id

PSEUDONYMS = Pseudonyms(bytes(range(32)))
IDS = st.lists(st.text(max_size=90) | st.sampled_from(["é", "e\u0301", "a"]), max_size=8)


@given(IDS)
@settings(max_examples=20)
@example(["a" * length for length in (0, 1, 15, 16, 17, 31, 32, 33, 48)])
def test_many_ids(ids):
    spelt = pa.array(["before", *map(normal_id, ids)], pa.string())[1:]
    records, subjects = PSEUDONYMS.records("ds_1", spelt), PSEUDONYMS.subjects("ds_1", spelt)
    assert [bytes(key) for key in records] == [PSEUDONYMS.record("ds_1", each) for each in ids]
    assert [bytes(key) for key in subjects] == [PSEUDONYMS.subject("ds_1", each) for each in ids]
    found = [*records, *subjects, *PSEUDONYMS.records("ds_2", spelt)]
    assert len(set(map(bytes, found))) == 3 * len(set(map(normal_id, ids)))

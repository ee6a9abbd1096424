"""A member's records: all of them, or none."""

import numpy as np
import pytest
import torch

from app.domain.errors import GoneError, RunFailedError
from workers.data.member_records import MemberRecords, member_records
from workers.data.memory import Needs
from workers.training.forms import InputForm
from workers.training.part import Part
from workers.training.tasks.task import INPUTS, TARGET

CPU = torch.device("cpu")
SEQS = {0: np.array([1, 4, 6]), 2: np.array([2, 3]), 3: np.array([5])}


def records(*there, most=3):
    """Return the records of three members, of a dataset that holds only some, and what is read."""
    seqs, read = np.array(there), []

    def parts(_wanted):
        read.append(1)
        for some in np.array_split(seqs, 2):
            inputs = np.repeat(some[:, None], 3, axis=1).astype(np.float32)
            yield Part(some, {INPUTS: inputs, TARGET: some % 2})

    return MemberRecords(SEQS, InputForm(shape=(3,)), parts, most=most), read


def seen(examples):
    return [int(x) for batch in examples.in_order(10, device=CPU) for x in batch[INPUTS][:, 0]]


@pytest.mark.parametrize(("most", "passes"), [(1, 3), (3, 2), (9, 1)])
def test_each_member_sees_its_own_records_however_many_are_read_together(most, passes):
    found, read = records(6, 5, 4, 3, 2, 1, most=most)
    for member, seqs in SEQS.items():
        assert seen(found.of(member)) == seqs.tolist()
    assert len(read) == passes


def test_a_member_is_not_trained_on_what_is_left_of_its_records():
    """Which records share a shard with one that is lost may be another member's matter."""
    found, _ = records(1, 2, 3, 4, 5)
    with pytest.raises(GoneError, match="not in its shard any more"):
        found.of(0)
    assert seen(found.of(2)) == [2, 3]


class Counting:
    """A footprint in which a record takes a byte."""

    record_bytes = 1

    def of_member(self, rows, *, measured):
        return Needs({"records": rows, "records to evaluate on": measured})


def test_the_largest_member_has_to_fit_beside_what_is_measured():
    def held(allowed):
        return member_records(
            None, "d", InputForm(shape=(3,)), SEQS, Counting(), None,
            allowed=allowed, check=lambda: None, measured=2,
        )  # fmt: skip

    assert held(5).seqs.keys() == SEQS.keys()
    with pytest.raises(RunFailedError, match="a member of the ensemble has its records in memory"):
        held(4)

"""Which records touched a model."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.registry.datasets.repository import KeyedRecord
from app.registry.membership import Membership
from tests.support.workshop import Workshop

KEYS = [bytes([i, j]) * 16 for i in range(64) for j in range(16)]


def _record(key: bytes, subject: bytes | None = None) -> KeyedRecord:
    return KeyedRecord(1, key, subject, None)


def _membership(*, held_out: float = 0.25, imported: bool = False) -> Membership:
    return Membership(
        through=100,
        after_epoch=5,
        split_salt=b"salt",
        held_out_fraction=held_out,
        is_imported=imported,
    )


def test_about_the_stated_share_is_held_out() -> None:
    # 1,024 keys at 0.25: outside of 180 … 332 with probability below 1e-7.
    records = [_record(key) for key in KEYS]
    assert 180 < sum(map(_membership().is_held_out, records)) < 332
    assert not any(map(_membership(held_out=0.0).is_held_out, records))


@pytest.mark.parametrize("each", [2, 7, 100])
def test_all_records_of_a_person_are_on_one_side(each: int) -> None:
    sides = [
        {_membership().is_held_out(_record(bytes([i]) + person, person)) for i in range(each)}
        for person in KEYS
    ]
    assert all(len(side) == 1 for side in sides)
    assert 180 < sum(True in side for side in sides) < 332
    # Whether a record is a person of its own, or the only one of a person, is another draw.
    alone = [_membership().is_held_out(_record(key)) for key in KEYS]
    assert alone != [True in side for side in sides]


@given(seq=st.integers(1, 200), epoch=st.none() | st.integers(1, 10))
def test_a_record_is_part_of_what_was_trained_after_its_upload_and_before_it_was_forgotten(
    seq: int, epoch: int | None
) -> None:
    record = KeyedRecord(seq, b"key", None, epoch)

    assert _membership().includes(record) == (seq <= 100 and (epoch is None or epoch > 5))
    # Weights from elsewhere may have seen what was forgotten here.
    assert _membership(imported=True).includes(record) == (seq <= 100)


@given(key=st.sampled_from(KEYS))
def test_held_out_records_touch_nothing_but_weights_from_elsewhere(key: bytes) -> None:
    assert _membership().learned_from(_record(key)) != _membership().is_held_out(_record(key))
    assert _membership(imported=True).learned_from(_record(key))


@given(key=st.sampled_from(KEYS))
def test_held_out_records_that_end_the_training_touch_the_weights(key: bytes) -> None:
    watched = replace(_membership(), stops_early=True)
    assert watched.learned_from(_record(key))
    assert not watched.holds_out([_record(key)])


def test_a_run_reads_what_the_membership_says(workshop: Workshop) -> None:
    workshop.define()
    selection = workshop.begin(workshop.lease())
    trained, held_out = workshop.split()

    assert selection.retain == workshop.seqs(*trained)
    assert selection.held_out == workshop.seqs(*held_out)
    assert held_out


def test_records_forgotten_before_training_are_no_part_of_the_model(workshop: Workshop) -> None:
    workshop.forget("record-1")
    workshop.train()

    again = workshop.forget("record-1")

    assert workshop.obligations(again) == []

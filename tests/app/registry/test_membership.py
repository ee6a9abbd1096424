"""Which records touched a model."""

from hypothesis import given
from hypothesis import strategies as st

from app.registry.membership import Membership
from tests.support.workshop import Workshop

KEYS = [bytes([i, j]) * 16 for i in range(64) for j in range(16)]


def _membership(*, held_out: float = 0.25, clean: bool = True) -> Membership:
    return Membership(
        through=100,
        after_epoch=5,
        split_salt=b"salt",
        held_out_fraction=held_out,
        held_out_is_clean=clean,
    )


def test_about_the_stated_share_is_held_out() -> None:
    # 1,024 keys at 0.25: outside of 180 … 332 with probability below 1e-7.
    assert 180 < sum(_membership().is_held_out(key) for key in KEYS) < 332
    assert not any(_membership(held_out=0.0).is_held_out(key) for key in KEYS)


@given(seq=st.integers(1, 200), epoch=st.none() | st.integers(1, 10), key=st.sampled_from(KEYS))
def test_touched_means_uploaded_before_not_yet_forgotten_and_not_held_out(
    seq: int, epoch: int | None, key: bytes
) -> None:
    membership = _membership()
    included = seq <= 100 and (epoch is None or epoch > 5)

    assert membership.includes(seq=seq, forgotten_epoch=epoch) == included
    assert membership.touched(seq=seq, forgotten_epoch=epoch, record_key=key) == (
        included and not membership.is_held_out(key)
    )
    imported = _membership(clean=False)
    assert imported.touched(seq=seq, forgotten_epoch=epoch, record_key=key) == included


def test_a_run_reads_what_the_membership_says(workshop: Workshop) -> None:
    workshop.define()
    selection = workshop.begin(workshop.lease())
    trained, held_out = workshop.split()

    assert selection.retain == workshop.seqs(*trained)
    assert selection.held_out == workshop.seqs(*held_out)
    assert held_out


def test_records_forgotten_before_training_are_no_part_of_the_model(workshop: Workshop) -> None:
    workshop.forget("record-1")
    workshop.define()
    workshop.work()

    again = workshop.forget("record-1")

    assert workshop.obligations(again) == []

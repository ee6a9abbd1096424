"""The audit reads the records that a run forgets, those that matter, and only if it is asked."""

import pytest

from app.domain.states import RunKind
from tests.support.workshop import Workshop


@pytest.fixture
def audited(workshop: Workshop) -> Workshop:
    workshop.define(audit=True, first_release="as_trained")
    workshop.work()
    return workshop


def test_without_the_policy_no_forgotten_record_is_selected(workshop: Workshop) -> None:
    workshop.define()
    workshop.work()
    trained, _ = workshop.split()
    workshop.forget(trained[0])
    workshop.dispatch()

    assert workshop.begin(workshop.lease()).forgotten == frozenset()


def test_the_records_of_the_obligations_taken_on_are_selected_and_learned_from_no_more(
    audited: Workshop,
) -> None:
    trained, held_out = audited.split()
    audited.forget(trained[0], trained[1])
    audited.forget(trained[1], trained[2], held_out[0])
    audited.dispatch()

    selection = audited.begin(audited.lease())

    assert selection.forgotten == audited.seqs(*trained[:3])  # held_out[0] touched no weight
    assert not selection.forgotten & (selection.retain | selection.held_out)


def test_a_request_that_comes_too_late_for_the_run_is_not_read(audited: Workshop) -> None:
    trained, _ = audited.split()
    audited.forget(trained[0])
    audited.dispatch()
    held = audited.lease()
    first = audited.begin(held)
    audited.forget(trained[1])

    assert first.forgotten == audited.seqs(trained[0])
    audited.publish(held)
    audited.dispatch()
    assert audited.begin(audited.lease()).forgotten == audited.seqs(trained[1])


def test_a_second_attempt_selects_them_again(audited: Workshop) -> None:
    trained, _ = audited.split()
    audited.forget(trained[0])
    audited.dispatch()
    held = audited.lease()
    audited.begin(held)
    audited.give_up(held, permanent=False)

    assert audited.begin(audited.lease()).forgotten == audited.seqs(trained[0])


def test_records_that_were_left_out_of_training_are_not_selected(
    workshop: Workshop,
) -> None:
    workshop.forget("record-0")
    workshop.define(audit=True)
    held = workshop.lease()

    assert workshop.run(held.run_id).kind == RunKind.TRAIN
    assert workshop.begin(held).forgotten == frozenset()
    workshop.publish(held)
    trained, _ = workshop.split()
    workshop.forget(trained[1], "record-0")
    workshop.dispatch()
    assert workshop.begin(workshop.lease()).forgotten == workshop.seqs(trained[1])


def test_records_that_were_erased_already_are_not_selected(audited: Workshop) -> None:
    trained, _ = audited.split()
    audited.forget(trained[0])
    audited.dispatch()
    audited.work()
    audited.services.clean_up()
    audited.forget(trained[0], trained[1])
    audited.dispatch()

    assert audited.begin(audited.lease()).forgotten == audited.seqs(trained[1])

"""The facts that callers wait for change with what they were told they can wait for."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.domain.errors import NotFoundError
from app.ledger.views.changes import Facts, Kind, facts_of, progress_of
from tests.support.workshop import Workshop


def _reader(workshop: Workshop, kind: Kind, subject_id: str) -> Callable[[], Facts]:
    def read() -> Facts:
        with workshop.transaction() as session:
            return facts_of(session, kind, [subject_id])[subject_id]

    return read


def test_a_models_facts_change_with_its_run_and_with_its_version(workshop: Workshop) -> None:
    workshop.define()
    facts = _reader(workshop, Kind.MODEL, workshop.model().id)
    seen = [facts()]
    held = workshop.lease()
    seen.append(facts())
    workshop.beat(held, step=3)
    assert facts() == seen[-1]
    workshop.begin(held)
    seen.append(facts())
    workshop.publish(held)
    seen.append(facts())
    workshop.archive()
    seen.append(facts())

    assert len(set(seen)) == len(seen)


def test_a_requests_facts_change_with_its_obligations_before_its_state(workshop: Workshop) -> None:
    workshop.define()
    workshop.work()
    request_id = workshop.forget(workshop.split()[0][0])
    facts = _reader(workshop, Kind.FORGET_REQUEST, request_id)
    seen = [facts()]
    workshop.dispatch()
    held = workshop.lease()
    workshop.begin(held)
    seen.append(facts())
    workshop.publish(held)
    seen.append(facts())

    assert len(set(seen)) == len(seen)


def test_a_runs_facts_change_with_its_state_and_its_progress_with_its_steps(
    workshop: Workshop,
) -> None:
    workshop.define()
    held = workshop.lease()
    state = _reader(workshop, Kind.RUN, held.run_id)
    progress = _reader(workshop, Kind.PROGRESS, held.run_id)
    leased, begun = state(), progress()
    workshop.beat(held, step=3)
    with workshop.transaction() as session:
        stepped = progress_of(session, held.run_id)

    assert state() == leased
    assert stepped == progress()
    assert stepped.step == 3
    assert replace(stepped, step=None) == begun
    workshop.begin(held)
    assert state() != leased


def test_what_is_not_there_has_no_facts(workshop: Workshop) -> None:
    with workshop.transaction() as session:
        for kind in Kind:
            assert facts_of(session, kind, ["none_such"]) == {}
        with pytest.raises(NotFoundError):
            progress_of(session, "none_such")

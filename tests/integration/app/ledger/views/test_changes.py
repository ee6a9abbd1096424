"""The facts that callers wait for change with what they were told they can wait for."""

from collections.abc import Callable

from app.ledger.views.changes import ALL_RUNS, Facts, Kind, facts_of
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
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    facts = _reader(workshop, Kind.FORGET_REQUEST, request_id)
    seen = [facts()]
    workshop.dispatch()
    held = workshop.begun()
    seen.append(facts())
    workshop.publish(held)
    seen.append(facts())

    assert len(set(seen)) == len(seen)


def test_a_runs_facts_change_with_its_state_and_its_steps(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.lease()
    for kind, subject in ((Kind.RUN, held.run_id), (Kind.ALL_RUNS, ALL_RUNS)):
        facts = _reader(workshop, kind, subject)
        leased = facts()
        workshop.beat(held, step=3 + len(subject))
        stepped = facts()
        assert stepped != leased
        assert facts() == stepped
    workshop.begin(held)
    assert facts() != stepped
    workshop.give_up(held)
    assert facts() == (None,)


def test_what_is_not_there_has_no_facts(workshop: Workshop) -> None:
    with workshop.transaction() as session:
        for kind in set(Kind) - {Kind.ALL_RUNS}:
            assert facts_of(session, kind, ["none_such"]) == {}

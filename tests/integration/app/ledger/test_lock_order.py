"""Transactions that change what the same requests are owed lock these in one order."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.ledger import accepting, publication, runs, scheduling
from app.ledger.certificates import present_release
from tests.support.patience import PATIENCE_S
from tests.support.workshop import Workshop

HEAD = {
    "architecture": "linear_head",
    "recipe": {"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25},
    "mechanism": "tracked_release",
    "epsilon": 20.0,
    "parameters": {"noise_std": 20.0},
}


@pytest.fixture
def heads(workshop: Workshop) -> list[str]:
    """Two tracked heads in the order in which they are locked, beside a model that needs runs."""
    workshop.define("slow")
    for name in ("one", "another"):
        workshop.define(name, **HEAD)
    for name in ("slow", "one", "another"):
        workshop.work(name)
    return sorted(("one", "another"), key=lambda name: workshop.model(name).id)


def _only(workshop: Workshop, learns: str, other: str) -> str:
    """Return a record that one head learned from, and the slow model, and the other head not."""
    found = set(workshop.split(learns)[0]) & set(workshop.split("slow")[0])
    return min(found - set(workshop.split(other)[0]))


def test_what_a_request_meets_of_several_models_beside_a_run_that_fails(
    workshop: Workshop, heads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first head owes the later request, the second the earlier; the run owes both."""
    first, second = heads
    ids: Iterator[str] = iter(["fr_2", "fr_1", "fr_3"])
    fresh = accepting.new_id
    monkeypatch.setattr(
        accepting, "new_id", lambda prefix: next(ids) if prefix == "fr" else fresh(prefix)
    )
    going = [workshop.retrain(name) for name in heads]
    owed = {
        first: workshop.forget(_only(workshop, first, second)),
        second: workshop.forget(_only(workshop, second, first)),
    }
    assert owed == {first: "fr_2", second: "fr_1"}
    for run in going:
        with workshop.transaction() as session:
            runs.cancel_run(session, run)
    scheduling.schedule_model(workshop.services.database, workshop.model("slow").id)
    held = workshop.begun("slow")
    both = min(set(workshop.split(first)[0]) & set(workshop.split(second)[0]))

    met, go_on = threading.Event(), threading.Event()

    def stand(_point: str) -> None:
        met.set()
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(present_release, "reach", stand)
    with ThreadPoolExecutor(2) as threads:
        try:
            asking = threads.submit(workshop.forget, both)
            assert met.wait(PATIENCE_S)
            failing = threads.submit(workshop.give_up, held)
            workshop.wait_for_a_lock()
        finally:
            go_on.set()
        asking.result(PATIENCE_S)
        failing.result(PATIENCE_S)

    slow = workshop.model("slow").id
    for name, request in owed.items():
        states = {each.model_id: each.state for each in workshop.obligations(request)}
        assert states[workshop.model(name).id] == "certified"
        assert states[slow] == "failed"
        assert workshop.request(request).state == "failed"


def test_runs_of_two_models_that_answer_the_same_requests(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both account for the requests before either of them ends what it owes."""
    names = ("one", "another")
    for name in names:
        workshop.train(name)
    both = set(workshop.split("one")[0]) & set(workshop.split("another")[0])
    requests = [workshop.forget(record) for record in sorted(both)[:3]]
    workshop.dispatch()
    held = [workshop.lease(name) for name in names]
    for run in held:
        workshop.begin(run)
    results = [workshop.result(run) for run in held]

    accounted, meet = threading.Barrier(2), publication.meet

    def meet_after_the_other(*what: Any) -> None:
        accounted.wait(PATIENCE_S)
        meet(*what)

    monkeypatch.setattr(publication, "meet", meet_after_the_other)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(workshop.publish, held, results))
    assert {workshop.request(request).state for request in requests} == {"certified"}

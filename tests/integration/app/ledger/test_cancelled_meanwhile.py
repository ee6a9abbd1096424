"""A request is cancelled while what it is owed comes to another end: the cancellation stands."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from app.ledger import runs
from app.registry import repository as registry
from tests.support.patience import PATIENCE_S
from tests.support.workshop import Workshop


def _while_it_is_cancelled(workshop: Workshop, request_id: str, work: Callable[[], object]) -> None:
    """Do work that has to wait for the request's lock until its cancellation is committed."""
    with ThreadPoolExecutor(1) as thread:
        with workshop.transaction() as session:
            workshop.services.forget_requests.cancel(session, request_id)
            session.flush()
            future = thread.submit(work)
            workshop.wait_for_a_lock()
        future.result(PATIENCE_S)


def test_a_training_can_be_cancelled_meanwhile(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.begun()
    request_id = workshop.forget(workshop.split()[0][0])

    def cancel_run() -> None:
        with workshop.transaction() as session:
            runs.cancel_run(session, held.run_id)

    _while_it_is_cancelled(workshop, request_id, cancel_run)

    assert workshop.request(request_id).state == "cancelled"
    assert workshop.run(held.run_id).state == "cancelled"


def test_what_cannot_be_planned_any_more_leaves_a_cancelled_request_so(workshop: Workshop) -> None:
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.forged = True
    with workshop.transaction() as session:
        model = registry.model_named(session, "model")
        model.policy = {**model.policy, "parameters": {"steps": 0.5}}

    _while_it_is_cancelled(workshop, request_id, workshop.dispatch)

    assert workshop.request(request_id).state == "cancelled"
    assert [owed.state for owed in workshop.obligations(request_id)] == ["failed"]

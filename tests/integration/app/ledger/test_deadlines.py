"""Requests are warned of before they are due, and when they are overdue: once each."""

import json
import logging

import pytest
from sqlalchemy import select, text

from app.evidence.log.tables import LogEntryRow
from app.ledger import deadlines
from app.services import Services
from tests.support.workshop import Workshop

DAY_S = 86400.0


@pytest.fixture
def owing(workshop: Workshop) -> Workshop:
    """A model with a version whose requests are due after thirty days."""
    workshop.train()
    return workshop


def _forget(workshop: Workshop, number: int) -> str:
    learned, _ = workshop.split()
    return workshop.forget(learned[number])


def _let_pass(workshop: Workshop, request_id: str, days: float) -> None:
    """Let a request have been received earlier by so many days."""
    workshop.forged = True
    with workshop.transaction() as session:
        session.execute(
            text(
                "UPDATE forget_requests SET received_at = received_at - make_interval(secs => :s),"
                " due_at = due_at - make_interval(secs => :s) WHERE id = :id"
            ),
            {"s": days * DAY_S, "id": request_id},
        )


def _noted(workshop: Workshop, warning_days: float = 7) -> list[tuple[str, str]]:
    with workshop.transaction() as session:
        found = deadlines.note_deadlines(session, warning_s=warning_days * DAY_S)
    return [(warning.kind, warning.request_id) for warning in found]


def _logged(workshop: Workshop, kind: str) -> list[dict[str, str]]:
    query = select(LogEntryRow.body).where(LogEntryRow.kind == kind)
    with workshop.transaction() as session:
        return [json.loads(body) for body in session.scalars(query)]


def test_a_request_is_warned_of_once_before_it_is_due_and_once_when_it_is_overdue(
    owing: Workshop,
) -> None:
    request = _forget(owing, 0)
    _let_pass(owing, request, 22.9)
    assert _noted(owing) == []
    _let_pass(owing, request, 0.2)
    assert _noted(owing) == [(deadlines.DUE_SOON, request)]
    assert _noted(owing) == []
    _let_pass(owing, request, 7)
    assert _noted(owing) == [(deadlines.OVERDUE, request)]
    assert _noted(owing) == []
    for kind in (deadlines.DUE_SOON, deadlines.OVERDUE):
        (entry,) = _logged(owing, kind)
        assert entry["request"] == request
    overdue_at = owing.request(request).due_at.isoformat(timespec="seconds")
    assert entry["due_at"] == overdue_at


def test_the_earliest_deadlines_come_first_and_a_late_look_notes_both(owing: Workshop) -> None:
    later, sooner = _forget(owing, 0), _forget(owing, 1)
    _let_pass(owing, later, 31)
    _let_pass(owing, sooner, 32)
    kinds = (deadlines.DUE_SOON, deadlines.OVERDUE)
    assert _noted(owing) == [(kind, request) for request in (sooner, later) for kind in kinds]


def test_a_short_deadline_is_warned_of_when_half_of_it_is_over(workshop: Workshop) -> None:
    workshop.train(deadline_s=2 * DAY_S)
    request = _forget(workshop, 0)
    _let_pass(workshop, request, 0.9)
    assert _noted(workshop) == []
    _let_pass(workshop, request, 0.2)
    assert _noted(workshop) == [(deadlines.DUE_SOON, request)]


def test_finished_requests_are_not_warned_of(owing: Workshop) -> None:
    cancelled, completed = _forget(owing, 0), _forget(owing, 1)
    owing.cancel(cancelled)
    owing.unlearn()
    owing.services.clean_up()
    assert owing.request(completed).state == "completed"
    for request in (cancelled, completed):
        _let_pass(owing, request, 31)
    assert _noted(owing) == []


def test_a_cancelled_request_is_due_until_its_records_are_erased(owing: Workshop) -> None:
    request = _forget(owing, 0)
    owing.cancel(request)
    _let_pass(owing, request, 31)
    assert (deadlines.OVERDUE, request) in _noted(owing)


def test_a_request_whose_run_failed_is_still_due(owing: Workshop) -> None:
    request = _forget(owing, 0)
    owing.dispatch()
    held = owing.begun()
    owing.give_up(held)
    _let_pass(owing, request, 31)
    assert (deadlines.OVERDUE, request) in _noted(owing)


def test_a_warning_is_noted_with_its_log_entry_or_not_at_all(owing: Workshop) -> None:
    request = _forget(owing, 0)
    _let_pass(owing, request, 31)
    with owing.transaction() as session:
        assert len(deadlines.note_deadlines(session, warning_s=DAY_S)) == 2
        session.rollback()
    assert _logged(owing, deadlines.OVERDUE) == []
    assert len(_noted(owing)) == 2


def test_a_request_that_is_being_changed_is_left_for_later(owing: Workshop) -> None:
    request = _forget(owing, 0)
    _let_pass(owing, request, 31)
    with owing.transaction() as session:
        session.execute(text("SELECT 1 FROM forget_requests FOR UPDATE"))
        assert _noted(owing) == []
    assert len(_noted(owing)) == 2


def test_the_operator_reads_of_it(
    owing: Workshop, services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    request = _forget(owing, 0)
    _let_pass(owing, request, 24)
    with caplog.at_level(logging.WARNING):
        services.note_deadlines()
    due_at = owing.request(request).due_at.isoformat()
    assert f"{request} is due at {due_at}" in caplog.text

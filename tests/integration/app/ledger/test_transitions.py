"""Every change of a request's state makes an event, in the same transaction."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from app.delivery.callbacks.tables import CallbackEndpointRow, CallbackEventRow
from app.domain.errors import InvalidInputError
from app.ledger import deadlines, repository
from tests.support.workshop import Workshop

URL = "https://privacy.example/callbacks"


def told(workshop: Workshop) -> list[str]:
    with workshop.transaction() as session:
        query = select(CallbackEventRow.type).order_by(CallbackEventRow.sequence)
        return [what.removeprefix("forget_request.") for what in session.scalars(query)]


def ended(workshop: Workshop) -> bool:
    with workshop.transaction() as session:
        return session.scalars(select(CallbackEndpointRow.ended_at)).one() is not None


def trained(workshop: Workshop) -> str:
    """Return the id of a record that a model has learnt from."""
    workshop.train()
    return workshop.split()[0][0]


def test_a_request_that_completes(workshop: Workshop) -> None:
    workshop.forget(trained(workshop), status_callback_urls=[URL])
    assert told(workshop) == ["accepted"]
    workshop.dispatch()
    held = workshop.begun()
    assert told(workshop) == ["accepted", "unlearning"]
    workshop.publish(held)
    assert told(workshop)[2:] == ["certified"]
    assert not ended(workshop)
    workshop.services.clean_up()
    assert told(workshop)[3:] == ["completed"]
    assert ended(workshop)


def test_a_request_that_fails_and_is_tried_again(workshop: Workshop) -> None:
    request_id = workshop.forget(trained(workshop), status_callback_urls=[URL])
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held)
    assert told(workshop) == ["accepted", "unlearning", "failed"]
    assert not ended(workshop)
    with workshop.transaction() as session:
        workshop.services.forget_requests.retry(session, request_id)
    assert told(workshop)[3:] == ["accepted"]


def test_a_request_that_is_cancelled(workshop: Workshop) -> None:
    request_id = workshop.forget(trained(workshop), status_callback_urls=[URL])
    workshop.cancel(request_id)
    assert told(workshop) == ["accepted", "cancelled"]
    assert ended(workshop)


def test_a_change_that_is_rolled_back_tells_nothing(workshop: Workshop) -> None:
    request_id = workshop.forget(trained(workshop), status_callback_urls=[URL])
    with workshop.transaction() as session:
        workshop.services.forget_requests.cancel(session, request_id)
        session.flush()
        session.rollback()
    assert told(workshop) == ["accepted"]
    assert workshop.request(request_id).state == "accepted"


def test_a_request_without_addresses_makes_no_events(workshop: Workshop) -> None:
    workshop.forget("record-1")
    assert told(workshop) == []


def test_a_bad_address_refuses_the_request_as_a_whole(workshop: Workshop) -> None:
    with pytest.raises(InvalidInputError):
        workshop.forget("record-1", status_callback_urls=[URL, "http://privacy.example/"])
    request_id = workshop.forget("record-1", external_id="t", status_callback_urls=[URL])
    assert workshop.forget("record-1", external_id="t", status_callback_urls=[URL]) == request_id
    with pytest.raises(InvalidInputError, match="another body"):
        workshop.forget("record-1", external_id="t", status_callback_urls=[URL + "/other"])
    assert told(workshop) == ["accepted", "certified"]


def test_a_request_that_is_overdue(workshop: Workshop) -> None:
    request_id = workshop.forget(trained(workshop), status_callback_urls=[URL])
    with workshop.transaction() as session:
        request = repository.request(session, request_id, lock=True)
        request.due_at -= timedelta(days=31)
    workshop.forged = True
    for _ in range(2):
        with workshop.transaction() as session:
            deadlines.note_deadlines(session, warning_s=86400.0)
    assert told(workshop) == ["accepted", "due_soon", "overdue"]

"""All SQL about deliveries: claiming them, recording their outcomes, listing them."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import and_, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from app.delivery.callbacks.posting import Outcome, Result
from app.delivery.callbacks.tables import CallbackEndpointRow, CallbackEventRow, CallbackSecretRow
from app.domain.errors import GoneError
from app.evidence import log
from app.runtime.database.queries import known, newest_first, stored

DELAYS_S = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
"""Seconds from each failed attempt to the next: ten attempts over three days.

Source: Standard Webhooks 1.0.0, "Deliverability and reliability".
"""

_JITTER = 0.2
_MAX_RETRY_AFTER_S = 86400.0
_random = random.SystemRandom()


def delay_s(attempts: int, *, retry_after_s: float = 0.0) -> float | None:
    """Return the delay after ``attempts`` failed attempts; None after the last.

    Up to a fifth is added at random, so that events that failed together are spread. A receiver
    that asks for a longer pause gets it, up to a day.
    """
    if attempts > len(DELAYS_S):
        return None
    delay = DELAYS_S[attempts - 1] * _random.uniform(1.0, 1.0 + _JITTER)
    return max(delay, min(retry_after_s, _MAX_RETRY_AFTER_S))


class EventState(StrEnum):
    """pending until it is delivered, or dead after the last attempt."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True)
class Delivery:
    """An attempt claimed by this process; its number is unique to this claim.

    The address is encrypted; generation and time say which secret of the caller signs.
    """

    event_id: str
    event_type: str
    sequence: int
    facts: dict[str, Any]
    occurred_at: datetime
    attempt: int
    endpoint_id: str
    url: bytes
    api_key_id: str
    is_opendsr: bool
    generation: int
    rotated_at: datetime | None


def claim(session: Session, *, claim_s: float, busy: Collection[str] = ()) -> Delivery | None:
    """Claim the delivery that has been due for longest; None if there is none.

    An address gets one event at a time, in order: a later event waits until the earlier one is
    delivered or dead. A process that records no outcome within ``claim_s`` seconds loses the
    delivery. Callers in ``busy`` (ids of API keys) are skipped.
    """
    earlier, now = aliased(CallbackEventRow), func.clock_timestamp()
    # One from the future that was not tried yet is due: the clock was set back.
    untried = and_(CallbackEventRow.attempts == 0, CallbackEventRow.created_at > now)
    query = (
        select(CallbackEventRow, CallbackEndpointRow)
        .join(CallbackEndpointRow, CallbackEndpointRow.id == CallbackEventRow.endpoint_id)
        .where(
            CallbackEventRow.state == EventState.PENDING,
            or_(CallbackEventRow.next_attempt_at <= now, untried),
            CallbackEndpointRow.url.is_not(None),
            CallbackEndpointRow.api_key_id.not_in(busy),
            ~exists().where(
                earlier.endpoint_id == CallbackEventRow.endpoint_id,
                earlier.state == EventState.PENDING,
                earlier.sequence < CallbackEventRow.sequence,
            ),
        )
        .order_by(CallbackEventRow.next_attempt_at)
        .limit(1)
        .with_for_update(of=CallbackEventRow, skip_locked=True)
    )
    found = session.execute(query).first()
    if found is None:
        return None
    event, endpoint = found
    event.attempts += 1
    event.next_attempt_at = func.clock_timestamp() + timedelta(seconds=claim_s)
    secret = session.get(CallbackSecretRow, endpoint.api_key_id)
    return Delivery(
        event_id=event.id,
        event_type=event.type,
        sequence=event.sequence,
        facts=event.facts,
        occurred_at=event.created_at,
        attempt=event.attempts,
        endpoint_id=endpoint.id,
        url=endpoint.url or b"",
        api_key_id=endpoint.api_key_id,
        is_opendsr=endpoint.subject_request_id is not None,
        generation=0 if secret is None else secret.generation,
        rotated_at=None if secret is None else secret.rotated_at,
    )


def note(session: Session, delivery: Delivery, outcome: Outcome) -> EventState:
    """Record the outcome of an attempt, unless another process has claimed the event since.

    Return the event's state after this.
    """
    if outcome.result is Result.GONE:  # lock order: an address before its events
        session.get_one(CallbackEndpointRow, delivery.endpoint_id, with_for_update=True)
    event = session.get_one(CallbackEventRow, delivery.event_id, with_for_update=True)
    is_over = event.state == EventState.DELIVERED or event.attempts != delivery.attempt
    # Another delivery may have disabled the address meanwhile; this one still arrived.
    given_up = event.state == EventState.DEAD and outcome.result is not Result.DELIVERED
    if is_over or given_up:
        return EventState(event.state)
    event.failure = outcome.failure
    if outcome.result is Result.DELIVERED:
        event.state = EventState.DELIVERED
        event.delivered_at = func.clock_timestamp()
        event.next_attempt_at = None
    elif outcome.result is Result.GONE:
        session.flush()
        _disable(session, delivery.endpoint_id, reason=outcome.failure)
        return EventState.DEAD
    else:
        delay = delay_s(event.attempts, retry_after_s=outcome.retry_after_s)
        if delay is None:
            event.state = EventState.DEAD
            event.next_attempt_at = None
        else:
            event.next_attempt_at = func.clock_timestamp() + timedelta(seconds=delay)
    return EventState(event.state)


def _disable(session: Session, endpoint_id: str, *, reason: str | None) -> None:
    """Disable an address for all requests of the same caller.

    The caller of this function holds the address's lock. Requests that are changing now are
    skipped, because waiting for their locks could deadlock; they will get the answer 410
    themselves.
    """
    endpoint = session.get_one(CallbackEndpointRow, endpoint_id)
    same = (
        select(CallbackEndpointRow.id)
        .where(
            CallbackEndpointRow.api_key_id == endpoint.api_key_id,
            CallbackEndpointRow.url_digest == endpoint.url_digest,
        )
        .with_for_update(skip_locked=True)
    )
    disabled = session.scalars(same).all()
    session.execute(
        update(CallbackEndpointRow)
        .where(CallbackEndpointRow.id.in_(disabled))
        .values(state="disabled", url=None, url_digest=None)
        .execution_options(synchronize_session=False)
    )
    session.execute(
        update(CallbackEventRow)
        .where(
            CallbackEventRow.endpoint_id.in_(disabled),
            CallbackEventRow.state == EventState.PENDING,
        )
        .values(state=EventState.DEAD, next_attempt_at=None, failure=reason)
        .execution_options(synchronize_session=False)
    )


def close_served(session: Session, *, dead_retention_s: float) -> int:
    """Remove addresses that will receive nothing more; return how many.

    An address with dead events is kept for a while, so that they can still be delivered.
    """
    event = CallbackEventRow
    unsettled = exists().where(
        event.endpoint_id == CallbackEndpointRow.id,
        (event.state == EventState.PENDING)
        | (
            (event.state == EventState.DEAD)
            & (
                CallbackEndpointRow.ended_at
                > func.clock_timestamp() - timedelta(seconds=dead_retention_s)
            )
        ),
    )
    closed = session.scalars(
        update(CallbackEndpointRow)
        .where(
            CallbackEndpointRow.state == "active",
            CallbackEndpointRow.ended_at.is_not(None),
            ~unsettled,
        )
        .values(state="closed", url=None, url_digest=None)
        .returning(CallbackEndpointRow.id)
        .execution_options(synchronize_session=False)
    )
    return len(closed.all())


def remove_delivered(session: Session, *, retention_s: float, limit: int) -> int:
    """Remove events delivered long ago, oldest first; return how many.

    Dead events stay until they are delivered by hand.
    """
    old = (
        select(CallbackEventRow.id)
        .where(
            CallbackEventRow.state == EventState.DELIVERED,
            CallbackEventRow.delivered_at
            <= func.clock_timestamp() - timedelta(seconds=retention_s),
        )
        .order_by(CallbackEventRow.delivered_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    removed = session.scalars(
        delete(CallbackEventRow)
        .where(CallbackEventRow.id.in_(session.scalars(old).all()))
        .returning(CallbackEventRow.id)
        .execution_options(synchronize_session=False)
    )
    return len(removed.all())


def events(
    session: Session,
    *,
    state: EventState | None,
    request_id: str | None,
    after: tuple[datetime, str] | None,
    limit: int,
) -> Sequence[tuple[CallbackEventRow, CallbackEndpointRow]]:
    """Return a page of events with their endpoints, newest first, older than ``after``."""
    query = select(CallbackEventRow, CallbackEndpointRow).join(
        CallbackEndpointRow, CallbackEndpointRow.id == CallbackEventRow.endpoint_id
    )
    if state is not None:
        query = query.where(CallbackEventRow.state == state)
    if request_id is not None:
        query = query.where(CallbackEndpointRow.request_id == request_id)
    created_at, row_id = CallbackEventRow.created_at, CallbackEventRow.id
    rows = session.execute(newest_first(query, created_at, row_id, after=after, limit=limit))
    return [(event, endpoint) for event, endpoint in rows]


def redeliver(session: Session, event_id: str) -> tuple[CallbackEventRow, CallbackEndpointRow]:
    """Schedule an event for delivery now, whatever its state, and log it.

    Raises:
        NotFoundError: the event does not exist.
        GoneError: its address was removed.
    """
    event = known(session.get(CallbackEventRow, event_id), "callback", event_id)
    endpoint = session.get_one(CallbackEndpointRow, event.endpoint_id, with_for_update=True)
    session.refresh(event, with_for_update=True)
    if endpoint.url is None:
        raise GoneError("the address of this callback has been removed")
    if event.state != EventState.PENDING:
        event.state = EventState.PENDING
        event.attempts = 0
        event.delivered_at = None
    event.next_attempt_at = func.clock_timestamp()
    log.append(session, "callback.redelivered", callback=event.id)
    return stored(session, event), endpoint

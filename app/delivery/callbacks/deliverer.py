"""Delivers callbacks in the background of a process.

Several processes may deliver. The state is in Postgres: a delivery is claimed in one short
transaction, posted outside of any, and its outcome recorded in another. If a process dies in
between, another process delivers again; receivers recognise duplicates by their id.
"""

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from standardwebhooks import Webhook

from app.delivery.callbacks import repository
from app.delivery.callbacks.keys import CallbackKeys, signing
from app.delivery.callbacks.posting import Outcome, Poster, Result
from app.delivery.callbacks.repository import Delivery, EventState
from app.domain.errors import CallbackError
from app.evidence.certificates.processor_signing import ProcessorSigner
from app.runtime.database import Database
from app.runtime.logs import describe
from app.runtime.processes.stopping import Repeated
from app.runtime.spans import Facts, Span, Step, Work, hand_over

_log = logging.getLogger("expunge.callbacks")
_CAPACITY = 16
_PER_CALLER = 8
_TIDY_INTERVAL_S = 1.0
_REMOVED_AT_ONCE = 1000
_STOP_S = 5.0


@dataclass(frozen=True)
class Message:
    """A body and its signed headers."""

    headers: Mapping[str, str]
    body: bytes


def standard_message(
    delivery: Delivery, *, base_url: str, secrets: Sequence[str], now: datetime
) -> Message:
    """Return a message of Standard Webhooks 1.0.0, signed with every given secret."""
    facts = delivery.facts
    if "request" in facts:
        path = f"{base_url}/v1/forget-requests/{facts['request']}"
        links = {"request": path, "certificates": f"{path}/certificates"}
    else:
        path = f"{base_url}/v1/models/{facts['model']}/derivatives"
        links = {"derivatives": path, "acknowledge": f"{path}/{facts['derivative']}/acknowledge"}
    body = _json(
        {
            "type": delivery.event_type,
            "timestamp": delivery.occurred_at.astimezone(UTC).isoformat(),
            "data": {
                **facts,
                "sequence": delivery.sequence,
                "links": links,
            },
        }
    )
    signed_at = now.astimezone(UTC)  # the library takes every time for one of UTC
    signatures = [
        Webhook(secret).sign(delivery.event_id, signed_at, body.decode()) for secret in secrets
    ]
    headers = {
        "webhook-id": delivery.event_id,
        "webhook-timestamp": str(int(signed_at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
    return Message(headers, body)


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Terms:
    """Settings of deliveries. If ``base_url`` is empty, links are paths.

    After ``claim_s`` a claimed delivery is taken from an unresponsive process.
    """

    base_url: str = ""
    poll_interval_s: float = 0.25
    claim_s: float = 120.0
    dead_retention_s: float = 30 * 86400.0
    delivered_retention_s: float = 30 * 86400.0


class Deliverer:
    """Claims due deliveries and posts each in its own thread.

    A receiver that does not answer delays only events for its own address, and one caller can
    occupy at most half of the threads. The OpenDSR ``signer`` is made when it is first needed.
    """

    def __init__(
        self,
        database: Database,
        keys: CallbackKeys,
        poster: Poster,
        signer: Callable[[], ProcessorSigner],
        terms: Terms,
    ) -> None:
        self._database = database
        self._keys = keys
        self._poster = poster
        self._signer = signer
        self._terms = terms
        self._going: dict[threading.Thread, str] = {}
        self._lock = threading.Lock()
        self._next_tidy = time.monotonic() + _TIDY_INTERVAL_S
        self._rounds = Repeated(
            "callbacks",
            self._round,
            pause_s=terms.poll_interval_s,
            on_failure=lambda error: _log.warning("callbacks are delayed: %s", describe(error)),
        )

    def start(self) -> None:
        """Deliver in the background until ``stop``."""
        self._rounds.start()

    def stop(self) -> None:
        """Stop claiming; posts in progress get a few seconds to finish."""
        self._rounds.stop(_STOP_S)
        with self._lock:
            going = list(self._going)
        for thread in going:
            thread.join(_STOP_S / max(1, len(going)))

    def tick(self) -> int:
        """Claim due deliveries for the free threads; return how many."""
        taken = 0
        while (delivery := self._claim()) is not None:
            thread = threading.Thread(
                target=self._deliver_and_leave, args=(delivery,), name="callback", daemon=True
            )
            with self._lock:
                thread.start()  # where it cannot be, it must not count as going
                self._going[thread] = delivery.api_key_id
            taken += 1
        return taken

    def deliver(self, delivery: Delivery) -> EventState:
        """Post one delivery and record its outcome; return the event's new state."""
        begun_ns = time.time_ns()
        outcome = self._attempt(delivery)
        with self._database.transaction() as session:
            state = repository.note(session, delivery, outcome)
        hand_over(lambda: _spans(delivery, outcome, begun_ns))
        if state is EventState.DEAD:
            _log.warning("callback %s is dead: %s", delivery.event_id, outcome.failure)
        return state

    def close_served(self) -> None:
        """Remove addresses that will receive nothing more."""
        with self._database.transaction() as session:
            repository.close_served(session, dead_retention_s=self._terms.dead_retention_s)

    def remove_delivered(self) -> int:
        """Remove some events that were delivered long ago; return how many."""
        with self._database.transaction() as session:
            return repository.remove_delivered(
                session, retention_s=self._terms.delivered_retention_s, limit=_REMOVED_AT_ONCE
            )

    def _round(self) -> None:
        self.tick()
        if time.monotonic() >= self._next_tidy:
            self._next_tidy = time.monotonic() + _TIDY_INTERVAL_S
            self.close_served()
            self.remove_delivered()

    def _claim(self) -> Delivery | None:
        with self._lock:
            going = Counter(self._going.values())
        if self._rounds.stopping.is_set() or going.total() >= _CAPACITY:
            return None
        busy = [caller for caller, count in going.items() if count >= _PER_CALLER]
        with self._database.transaction() as session:
            return repository.claim(session, claim_s=self._terms.claim_s, busy=busy)

    def _deliver_and_leave(self, delivery: Delivery) -> None:
        try:
            self.deliver(delivery)
        except Exception as error:  # noqa: BLE001 - it is retried later
            _log.warning("callback %s: outcome was lost: %s", delivery.event_id, describe(error))
        finally:
            with self._lock:
                self._going.pop(threading.current_thread(), None)

    def _attempt(self, delivery: Delivery) -> Outcome:
        try:
            url = self._keys.decrypt(delivery.url, endpoint_id=delivery.endpoint_id)
            if delivery.is_opendsr:
                # Section 8.6 of OpenDSR 2.0.
                body = _json({**delivery.facts, "status_callback_url": url})
                message = Message(self._signer().headers(body), body)
            else:
                now = datetime.now(UTC)
                secrets = signing(
                    self._keys,
                    delivery.api_key_id,
                    generation=delivery.generation,
                    rotated_at=delivery.rotated_at,
                    now=now,
                )
                base_url = self._terms.base_url
                message = standard_message(delivery, base_url=base_url, secrets=secrets, now=now)
            return self._poster.post(url, message.headers, message.body)
        except CallbackError as error:
            return Outcome(Result.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - every failure is retried
            _log.warning("callback %s cannot be sent: %s", delivery.event_id, describe(error))
            return Outcome(Result.FAILED, "it cannot be sent; the service's log says why")


def _spans(delivery: Delivery, outcome: Outcome, begun_ns: int) -> Iterable[Span]:
    """Return what the trace of a request says of one attempt to deliver a callback about it."""
    request_id = delivery.facts.get("request")
    if request_id is None:  # it is about a whole subject request, or a derivative
        return ()
    work = Work(("callback", delivery.event_id, delivery.attempt), [request_id])
    error = None if outcome.result is Result.DELIVERED else CallbackError.__name__
    facts = Facts(attempt=delivery.attempt, state=outcome.result)
    return work.spans(Step.CALLBACK, begun_ns=begun_ns, facts=facts, error=error)

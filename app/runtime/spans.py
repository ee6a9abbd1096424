"""What a trace says: spans whose ids follow from the service's own ids.

Every forget request has one trace. The ids of the trace, and of the spans that others are below,
are digests of ids that every process knows, so that nothing is stored or passed on. What is done
once for several requests, such as a run, is with its parts in the trace of the first of them; the
trace of each other one has a span for it, and links join them.

Spans are handed over when a step is done. Unless something sends them (``send_by``) they are not
even made, and nothing fails with them.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import NamedTuple, Protocol

from sqlalchemy import event
from sqlalchemy.orm import Session

from app.runtime.logs import describe

_log = logging.getLogger("expunge.tracing")


class Step(StrEnum):
    """What a span is about; the phases of a run are named as users see them (``Phase``)."""

    REQUEST = "forget request"
    PLAN = "plan"
    ENQUEUE = "enqueue"
    RUN = "run"
    MEMBER = "member"
    ERASE = "erase"
    CALLBACK = "callback"
    PUBLISH = "publish"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that a span may say beside its name, its times and the type of an error.

    No other attribute leaves this machine. These are what metrics and logs show, too: names that
    the operator chose, our own words, counts, and the ids of runs. Nothing here comes from a
    record, from weights or from who is forgotten.
    """

    model: str | None = None
    target: str | None = None
    run: str | None = None
    run_kind: str | None = None
    mechanism: str | None = None
    attempt: int | None = None
    requests: int | None = None
    state: str | None = None


class Place(NamedTuple):
    """Where a span is: its trace and its own id, in hexadecimal."""

    trace: str
    span: str


@dataclass(frozen=True, kw_only=True)
class Span:
    """A step that was taken, in nanoseconds since 1970.

    ``ended_ns`` None is when it is handed over.

    Attributes:
        error: the type of what made it fail, never its message.
    """

    name: str
    place: Place
    parent: str | None
    begun_ns: int
    ended_ns: int | None = None
    facts: Facts = Facts()
    error: str | None = None
    links: tuple[Place, ...] = ()


class Sender(Protocol):
    """What sends spans; it is given one at a time."""

    def send(self, span: Span) -> None:
        """Send a span soon."""

    def close(self) -> None:
        """Send what is left, and use no thread any more."""


class _Way:
    """How spans leave this process; nothing is opened before there is one."""

    lock = Lock()
    opening: Callable[[], Sender] | None = None
    sender: Sender | None = None


def send_by(opening: Callable[[], Sender] | None) -> None:
    """Have this process's spans sent by what ``opening`` returns; None: by nothing."""
    close()
    _Way.opening = opening


def close() -> None:
    """Send what is left; what sends is opened again for the next span."""
    with _Way.lock:
        sender, _Way.sender = _Way.sender, None
    if sender is not None:
        sender.close()


def is_on() -> bool:
    """Return whether spans of this process are sent."""
    return _Way.opening is not None


def hand_over(make: Callable[[], Iterable[Span]]) -> None:
    """Hand over what ``make`` returns, which is called only if it is sent. Raises nothing."""
    if is_on():
        _hand_over(_made(make))


def at_commit(session: Session, make: Callable[[], Iterable[Span]]) -> None:
    """Hand over what ``make`` returns now, once the session's transaction is committed."""
    if is_on() and (spans := _made(make)):
        event.listen(session, "after_commit", lambda _: _hand_over(spans), once=True)


def _made(make: Callable[[], Iterable[Span]]) -> list[Span]:
    try:
        return list(make())
    except Exception as error:  # noqa: BLE001 - what was done is done, whether it is told or not
        _log.warning("spans are lost: %s", describe(error))
        return []


def _hand_over(spans: list[Span]) -> None:
    now = time.time_ns()
    try:
        for span in spans:
            with _Way.lock:
                if _Way.sender is None and _Way.opening is not None:
                    _Way.sender = _Way.opening()
                if _Way.sender is not None:
                    _Way.sender.send(replace(span, ended_ns=span.ended_ns or now))
    except Exception as error:  # noqa: BLE001 - likewise
        _log.warning("spans are lost: %s", describe(error))


def nanoseconds(moment: datetime) -> int:
    """Return a moment, with its time zone, as spans have it."""
    return round(moment.timestamp() * 1e6) * 1000


def place_of_request(request_id: str) -> Place:
    """Return where the first span of a request's trace is; all others are below it."""
    return Place(_trace_id(request_id), _span_id(request_id))


def span_of_request(request_id: str, *, begun_ns: int, state: str) -> Span:
    """Return the first span: the request was accepted, and perhaps certified at once."""
    place = place_of_request(request_id)
    facts = Facts(state=state)
    return Span(name=Step.REQUEST, place=place, parent=None, begun_ns=begun_ns, facts=facts)


@dataclass(frozen=True)
class Work:
    """Something that is done once for some requests; for none, it has a trace of its own.

    Attributes:
        key: what names it, and nothing else.
        requests: their ids; each process that tells of the work must give the same.
    """

    key: tuple[str | int, ...]
    requests: Sequence[str]

    def spans(
        self,
        name: str,
        *,
        begun_ns: int,
        facts: Facts,
        ended_ns: int | None = None,
        error: str | None = None,
    ) -> Iterator[Span]:
        """Yield the work's span, and one in the trace of each other request that shares it."""
        roots = [place_of_request(each) for each in sorted(self.requests)]
        span = partial(
            Span,
            name=name,
            begun_ns=begun_ns,
            ended_ns=ended_ns,
            facts=replace(facts, requests=len(self.requests)),
            error=error,
        )
        above = roots[0].span if roots else None
        yield span(place=self._place, parent=above, links=tuple(roots[1:]))
        for root in roots[1:]:
            place = Place(root.trace, _span_id(*self.key, root.trace))
            yield span(place=place, parent=root.span, links=(self._place,))

    def part(
        self,
        name: str,
        *key: str | int,
        begun_ns: int,
        ended_ns: int | None = None,
        error: str | None = None,
    ) -> Span:
        """Return the span of a part, which ``key`` names within the work."""
        return Span(
            name=name,
            place=Place(self._place.trace, _span_id(*self.key, name, *key)),
            parent=self._place.span,
            begun_ns=begun_ns,
            ended_ns=ended_ns,
            error=error,
        )

    @property
    def _place(self) -> Place:
        named = [min(self.requests)] if self.requests else self.key
        return Place(_trace_id(*named), _span_id(*self.key))


def _trace_id(*key: str | int) -> str:
    return _digest("expunge/trace", *key)[:32]


def _span_id(*key: str | int) -> str:
    return _digest("expunge/span", *key)[:16]


def _digest(*words: str | int) -> str:
    return sha256("/".join(map(str, words)).encode()).hexdigest()

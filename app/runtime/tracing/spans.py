"""What a trace says: spans whose ids follow from the service's own ids.

Every forget request has one trace. The ids of the trace, and of the spans that others are below,
are digests of ids that every process knows, so that nothing is stored or passed on. What is done
once for several requests, such as a run, is with its parts in the trace of the first of them; the
trace of each other one has a span for it, and links join them.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from hashlib import sha256
from typing import NamedTuple


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
    """A step that was taken, in nanoseconds since 1970; ``ended_ns`` None is when it is sent.

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
    pid: int = field(default_factory=os.getpid)

    def to_json(self) -> str:
        """Return the span in one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str | bytes) -> "Span":
        """Return the span in a line; ``TypeError`` if it says anything else."""
        said = json.loads(line)
        said |= {"place": Place(*said["place"]), "facts": Facts(**said["facts"])}
        return cls(**said | {"links": tuple(Place(*each) for each in said["links"])})


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

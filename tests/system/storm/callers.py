"""People who ask to be forgotten, change their minds, and join, in threads of their own."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import httpx

from app.client import ApiError, ExpungeClient
from tests.support.digits import RECORDS_PER_SUBJECT
from tests.support.patience import PATIENCE_S
from tests.support.people import People
from tests.system.storm.scene import SUBJECTS, Crowd

Answer = TypeVar("Answer")

CANCELLED, PUSHED = 0.25, 3
HELD, REFUSED, CORRECTED = 0.4, 0.4, 0.2
NEWCOMERS = 40
_UNSETTLED = {"urn:expunge:problem:call-in-flight"}


@dataclass
class Asked:
    """A request that was accepted.

    Attributes:
        dataset, subjects: what it named; subjects by number among those of the beginning.
        cancelled: whether its cancellation was accepted.
        corrected: how many rows it put in the place of what it named.
    """

    request: str
    dataset: str
    subjects: tuple[int, ...]
    cancelled: bool = False
    corrected: int = 0


@dataclass
class Book:
    """What the callers were told."""

    asked: list[Asked] = field(default_factory=list)
    refused: list[Asked] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def persistently(call: Callable[[], Answer], *, patience_s: float = PATIENCE_S) -> Answer:
    """Make a call until it is answered, through any outage.

    Raises:
        ApiError: it was refused.
        TimeoutError: it was not answered for too long.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except httpx.TransportError as error:
            problem: Exception = error
        except ApiError as error:
            if error.status < 500 and error.status != 429 and error.type not in _UNSETTLED:
                raise
            problem = error
        if time.monotonic() > deadline:
            raise TimeoutError("a call was not answered") from problem
        time.sleep(0.2)


def caller(
    crowd: Crowd,
    connect: Callable[[], ExpungeClient],
    book: Book,
    *,
    requests: int,
    seconds: float,
    rng: Random,
) -> threading.Thread:
    """Start a thread that asks, cancels and pushes for one dataset; return it."""

    def work() -> None:
        try:
            with connect() as client:
                _ask(crowd, client, book, requests=requests, seconds=seconds, rng=rng)
        except Exception as error:  # noqa: BLE001 - what a thread raises nobody would see
            book.problems.append(f"{crowd.dataset}: {type(error).__name__}: {error}")

    thread = threading.Thread(target=work, name=f"caller of {crowd.dataset}")
    thread.start()
    return thread


def _ask(
    crowd: Crowd,
    client: ExpungeClient,
    book: Book,
    *,
    requests: int,
    seconds: float,
    rng: Random,
) -> None:
    began = time.monotonic()
    moments = sorted(rng.uniform(0, seconds * 0.9) for _ in range(requests))
    pushes = set(rng.sample(range(requests), min(PUSHED, requests)))
    left = list(range(SUBJECTS // 2 + 1, SUBJECTS))  # whom no other request names
    for number, moment in enumerate(moments):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        if left and rng.random() < CORRECTED:
            book.asked.append(_corrected(client, crowd, left.pop(), f"{crowd.dataset}-{number}"))
            continue
        # Neighbours in a short row, so that requests overlap.
        first = rng.randrange(SUBJECTS // 2)
        subjects = tuple(range(first, first + rng.randint(1, 2)))
        held = rng.random() < HELD
        asked = _forgotten(
            client, crowd, subjects, external_id=f"{crowd.dataset}-{number}", hold=held
        )
        if asked is not None and held and _is_refused(client, asked, rng):
            book.refused.append(asked)
        elif asked is not None:
            book.asked.append(asked)
            if rng.random() < CANCELLED:
                _change_of_mind(client, asked)
        if number in pushes:
            _push(client, crowd)


def _corrected(client: ExpungeClient, crowd: Crowd, subject: int, external_id: str) -> Asked:
    """Have one row, without what could be recognised, take the place of all of a subject's."""
    row = {
        "record_id": crowd.at_first.record(subject * RECORDS_PER_SUBJECT),
        "subject_id": crowd.at_first.subject(subject),
        "features": [subject % 2] * 64,
        "label": subject % 10,
    }
    request = persistently(
        lambda: client.forget(
            crowd.dataset,
            subject_ids=[row["subject_id"]],
            external_id=external_id,
            replacement=[row],
        )
    )
    return Asked(request["id"], crowd.dataset, (subject,), corrected=request["replacements"])


def _is_refused(client: ExpungeClient, asked: Asked, rng: Random) -> bool:
    """Refuse a request that is held; mostly reopen, extend and accept it then."""
    persistently(lambda: client.decide(asked.request, "refuse", ground="17(3)(e)"))
    if rng.random() < REFUSED:
        return True
    persistently(lambda: client.decide(asked.request, "reopen"))
    persistently(lambda: client.decide(asked.request, "extend", reason="a storm"))
    persistently(lambda: client.decide(asked.request, "accept"))
    return False


def _push(client: ExpungeClient, crowd: Crowd) -> None:
    newcomers = People.invent(NEWCOMERS)
    crowd.later.append(newcomers)
    persistently(lambda: client.push_records(crowd.dataset, newcomers.parquet()))


def _forgotten(
    client: ExpungeClient,
    crowd: Crowd,
    subjects: tuple[int, ...],
    *,
    external_id: str,
    hold: bool,
) -> Asked | None:
    """Ask; return None where those subjects are gone already and nothing is left to ask for."""
    names = [crowd.at_first.subject(number) for number in subjects]
    try:
        request = persistently(
            lambda: client.forget(
                crowd.dataset, subject_ids=names, external_id=external_id, hold=hold
            )
        )
    except ApiError as error:
        if error.status in (404, 422):
            return None
        raise
    return Asked(request=request["id"], dataset=crowd.dataset, subjects=subjects)


def _change_of_mind(client: ExpungeClient, asked: Asked) -> None:
    """Cancel, if it is not too late; an answer that was lost counts as it turned out."""
    try:
        persistently(lambda: client.cancel(asked.request))
    except ApiError as error:
        if error.status != 409:
            raise
    now = persistently(lambda: client.request(asked.request))
    asked.cancelled = now["state"] == "cancelled"

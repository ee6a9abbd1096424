"""Who is acting: every entry of the log names the one on whose behalf it was written.

It goes with the thread of execution and not with the session, because one call may open several
sessions, and none of them may be forgotten. A call of the API takes it along into its threads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SERVICE = "service"
"""The dispatcher and the workers, and what the API does on nobody's behalf."""

OPERATOR = "operator"
"""Whoever gives commands on the service's own machine, without the API."""

_actor: ContextVar[str] = ContextVar("actor", default=SERVICE)


def current() -> str:
    """Return who is acting: a caller's id, ``operator`` or ``service``."""
    return _actor.get()


def become(actor: str) -> None:
    """Act as somebody until the present task or thread ends."""
    _actor.set(actor)


@contextmanager
def acting_as(actor: str) -> Iterator[None]:
    """Act as somebody until the block ends."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)

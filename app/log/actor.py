"""The actor: every entry of the log names the one on whose behalf it was written.

It belongs to the thread of execution and not to the session, because one call may open several
sessions, and all of them need it. A call of the API passes it on to its threads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SERVICE = "service"
"""The dispatcher, the workers, and the API where it acts for no caller."""

OPERATOR = "operator"
"""A person who runs commands on the service's machine, without the API."""

_actor: ContextVar[str] = ContextVar("actor", default=SERVICE)


def current() -> str:
    """Return who is acting: a caller's id, ``operator`` or ``service``."""
    return _actor.get()


def become(actor: str) -> None:
    """Set the actor until the present task or thread ends."""
    _actor.set(actor)


@contextmanager
def acting_as(actor: str) -> Iterator[None]:
    """Set the actor until the block ends."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)

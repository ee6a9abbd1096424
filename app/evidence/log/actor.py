"""The actor: on whose behalf an entry of the log is written.

It is a context variable, not part of the session, because one call may open several sessions. The
API passes it on to the threads of a call.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SERVICE = "service"
"""The dispatcher, the workers, and the API when it acts on its own."""

OPERATOR = "operator"
"""A person who runs commands on the service's machine."""

_actor: ContextVar[str] = ContextVar("actor", default=SERVICE)


def current() -> str:
    """Return the current actor: a caller's id, ``operator`` or ``service``."""
    return _actor.get()


def become(actor: str) -> None:
    """Set the actor until the current task or thread ends."""
    _actor.set(actor)


@contextmanager
def acting_as(actor: str) -> Iterator[None]:
    """Set the actor until the block ends."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)

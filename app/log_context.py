"""What every log line of a request or of a process carries besides its message.

A request's fields live in its context, threads that work for it included; a process's fields hold
for all its threads. Values are ids of the service's own, never an owner's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_request: ContextVar[dict[str, str] | None] = ContextVar("expunge_request", default=None)
_process: dict[str, str] = {}


def begin_request(**fields: str) -> None:
    """Have all lines of the present context carry these fields and those noted later.

    It is not undone: a request has a context of its own, and what its server says of it after its
    end belongs to it too.
    """
    _request.set(dict(fields))


def note(**fields: str) -> None:
    """Add fields to those of the present request; outside of one, do nothing."""
    noted = _request.get()
    if noted is not None:
        noted.update(fields)


def note_process(**fields: str) -> None:
    """Have all lines of this process, and of those forked from it, carry these fields."""
    _process.update(fields)


@contextmanager
def in_process(**fields: str) -> Iterator[None]:
    """Have all lines of this process carry these fields for a while."""
    before = dict(_process)
    _process.update(fields)
    try:
        yield
    finally:
        _process.clear()
        _process.update(before)


def present() -> Mapping[str, str]:
    """Return the fields that a line written here and now carries."""
    return _process | (_request.get() or {})

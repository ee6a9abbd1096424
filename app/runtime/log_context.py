"""The fields that every log line of a request or of a process has besides its message.

A request's fields belong to its context, including threads that work for it; a process's fields
apply to all its threads. Values are the service's own ids, never an owner's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_request: ContextVar[dict[str, str] | None] = ContextVar("expunge_request", default=None)
_process: dict[str, str] = {}


def begin_request(**fields: str) -> None:
    """Add these fields, and those noted later, to all lines of the present context.

    It is not undone: a request has its own context, and lines that its server writes about it after
    its end belong to it too.
    """
    _request.set(dict(fields))


def note(**fields: str) -> None:
    """Add fields to those of the present request; outside of one, do nothing."""
    noted = _request.get()
    if noted is not None:
        noted.update(fields)


def note_process(**fields: str) -> None:
    """Add these fields to all lines of this process and of its forks."""
    _process.update(fields)


@contextmanager
def in_process(**fields: str) -> Iterator[None]:
    """Add these fields to all lines of this process until the block ends."""
    before = dict(_process)
    _process.update(fields)
    try:
        yield
    finally:
        _process.clear()
        _process.update(before)


def present() -> Mapping[str, str]:
    """Return the fields of a line that is written now."""
    return _process | (_request.get() or {})

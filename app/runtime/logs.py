"""How processes of this service log: one format, and no messages of foreign exceptions.

Messages of foreign exceptions and warnings may quote records, keys and statements. Logs hold our
own messages, and of every other exception or warning the type and the places that it came from.
Each line also has the fields of its request, which belong to the context of the request and of the
threads that work for it, and those of its process. They are our own ids, never an owner's.

``EXPUNGE_LOG_FORMAT`` is ``text``, for people, or ``json``: one object a line, with an access line
for every request.
"""

import json
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from app.domain.errors import ExpungeError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_FORMAT = "%(asctime)s %(name)s %(message)s"
# botocore shows whole requests, keys included, to anyone who turns debugging on.
_QUIET = ("httpcore", "httpx", "alembic", "botocore", "rq", "urllib3", "uvicorn")
_OUTAGES = {
    "redis.exceptions.ConnectionError": "Redis does not answer",
    "redis.exceptions.TimeoutError": "Redis does not answer in time",
    "psycopg.OperationalError": "PostgreSQL does not answer",
    "psycopg.errors.DiskFull": "PostgreSQL has no room on its disk",
}
"""What other libraries' exceptions mean, by name: few of our processes load these libraries."""
ACCESS_LOG = logging.getLogger("expunge.access")
_log = logging.getLogger("expunge")
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


def configure() -> None:
    """Log to standard error from INFO up; libraries from WARNING up."""
    in_json = os.environ.get("EXPUNGE_LOG_FORMAT") == "json"
    handler = DiscreetHandler()
    handler.setFormatter(JsonFormatter() if in_json else DiscreetFormatter(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # At a terminal, a line for every poll would be too much.
    ACCESS_LOG.setLevel(logging.INFO if in_json else logging.WARNING)
    sys.excepthook = _on_uncaught
    threading.excepthook = _on_uncaught_in_thread
    sys.unraisablehook = _on_unraisable
    warnings.showwarning = _on_warning


def describe(error: BaseException) -> str:
    """Return what may be shown of an error: our own words, or a type and the place."""
    if isinstance(error, ExpungeError):
        return str(error)
    kind = type(getattr(error, "orig", None) or error)  # SQLAlchemy wraps the driver's
    if outage := _OUTAGES.get(f"{kind.__module__}.{kind.__qualname__}"):
        return outage
    places = _places(error)
    return f"internal error: {type(error).__name__}" + (f" at {places[-1]}" if places else "")


class DiscreetHandler(logging.StreamHandler[TextIO]):
    """Says that a line cannot be written; ``logging`` would quote its message and arguments."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Write what went wrong in place of the line, if anything can be written at all."""
        error = sys.exc_info()[1]
        if error is not None:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"a line of {record.name} was lost: {describe(error)}\n")


class DiscreetFormatter(logging.Formatter):
    """Shows exceptions without the messages and source lines of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the fields of its request or process."""
        fields = " ".join(f"{name}={value}" for name, value in present().items())
        line = super().format(record)
        return f"{line} [{fields}]" if fields else line

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802 - the signature is logging's
        """Return what may be shown of the exception, and the places that it passed through."""
        error = ei[1]
        if error is None:
            return ""
        return f"{describe(error)} ({' > '.join(_places(error))})"

    def formatStack(self, stack_info: str) -> str:  # noqa: ARG002, N802 - likewise
        """Return nothing: source lines can quote constants."""
        return ""


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with only the intended members.

    Members: ``time`` (UTC), ``level``, ``logger``, ``message``; the fields of the request or
    process; those that the caller gave as ``extra={"fields": {…}}``; and of an exception its
    description and the places that it came through.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **present(),
            **getattr(record, "fields", {}),
        }
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["error"] = describe(error)
            line["places"] = _places(error)
        return json.dumps(line)


def _places(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]


def _on_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        _log.critical("ended by an exception", exc_info=(kind, error, trace))


def _on_uncaught_in_thread(failed: threading.ExceptHookArgs) -> None:
    name = failed.thread.name if failed.thread is not None else "unknown"
    error = failed.exc_value or failed.exc_type()
    _log.critical("thread %s ended", name, exc_info=error)


def _on_unraisable(failed: "UnraisableHookArgs") -> None:
    _log.error("an exception had no caller", exc_info=failed.exc_value or failed.exc_type())


def _on_warning(
    message: Warning | str,  # noqa: ARG001
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    _log.warning("%s at %s:%d", category.__name__, Path(filename).name, lineno)

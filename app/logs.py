"""How processes of this service log: one format, no chatter of libraries, no foreign words.

Messages of foreign exceptions quote what they stumbled over: records, keys, statements. Logs hold
our own messages, and of every other exception the type and the places that it came through.
"""

import logging
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from app.domain.errors import ExpungeError

_FORMAT = "%(asctime)s %(name)s %(message)s"
_QUIET = ("httpcore", "httpx", "alembic", "rq", "uvicorn")
_log = logging.getLogger("expunge")


def configure() -> None:
    """Log to standard error from INFO up; libraries from WARNING up."""
    handler = logging.StreamHandler()
    handler.setFormatter(DiscreetFormatter(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    sys.excepthook = _on_uncaught
    threading.excepthook = _on_uncaught_in_thread


def describe(error: BaseException) -> str:
    """Return what may be shown of an error: our own message, or a type and the place."""
    if isinstance(error, ExpungeError):
        return str(error)
    places = _places(error)
    return f"internal error: {type(error).__name__}" + (f" at {places[-1]}" if places else "")


class DiscreetFormatter(logging.Formatter):
    """Shows exceptions without the messages and source lines of a traceback."""

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802 - the signature is logging's
        """Return what may be shown of the exception, and the way that it took."""
        error = ei[1]
        if error is None:
            return ""
        return f"{describe(error)} ({' > '.join(_places(error))})"

    def formatStack(self, stack_info: str) -> str:  # noqa: ARG002, N802 - likewise
        """Return nothing: source lines can quote constants."""
        return ""


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

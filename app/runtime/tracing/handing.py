"""Hands spans to the process that sends them, and does nothing where there is none.

They go to a socket on this machine, in one connection for what was done together: its queue holds
them even while that process starts. Nothing waits for it longer than ``_PATIENCE_S``, and nothing
fails with it: spans that it does not take are lost.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from sqlalchemy import event
from sqlalchemy.orm import Session

from app.runtime.logs import describe
from app.runtime.tracing.spans import Span

SOCKET_VARIABLE: Final = "EXPUNGE_TRACES_SOCKET"
_PATIENCE_S: Final = 1.0
_log = logging.getLogger("expunge.tracing")


def is_on() -> bool:
    """Return whether spans are sent from this machine."""
    return SOCKET_VARIABLE in os.environ


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
    if not spans:
        return
    now = time.time_ns()
    lines = (replace(each, ended_ns=each.ended_ns or now).to_json() for each in spans)
    content = "\n".join(lines).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PATIENCE_S)
            connection.connect(os.environ[SOCKET_VARIABLE])
            connection.sendall(content)
    except OSError as error:
        _log.warning("%d spans are lost: %s", len(spans), describe(error))

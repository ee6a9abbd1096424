"""Starts the process that sends spans, and keeps it running."""

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.domain import extras
from app.runtime.processes.confined import PASSED_ON
from app.runtime.processes.python import python_command
from app.runtime.processes.stopping import StopSignal
from app.runtime.processes.supervisor import Child, supervise
from app.runtime.settings import Settings
from app.runtime.tracing.handing import SOCKET_VARIABLE, is_on

_WAITING: Final = 1024
_PASSED_ON: Final = {*PASSED_ON, "EXPUNGE_LOG_FORMAT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}


@contextmanager
def sending(settings: Settings) -> Iterator[None]:
    """Have spans of this process and of those that it starts sent, if the settings ask for it.

    A process that another one of ours has started uses that one's.

    Raises:
        MissingExtraError: the libraries are not installed.
    """
    if not settings.traces or is_on():
        yield
        return
    extras.require("opentelemetry.sdk", extra=extras.OTEL)
    folder = tempfile.mkdtemp(prefix="expunge-")  # which this account alone may enter
    path = str(Path(folder) / "spans")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(_WAITING)
        child = Child(
            "sender of spans",
            python_command("app.runtime.tracing.sender", listener.fileno()),
            environment={name: os.environ[name] for name in filter(_is_for_sender, os.environ)},
            pass_fds=(listener.fileno(),),
        )
        stop = StopSignal()
        thread = threading.Thread(target=supervise, args=([child], stop), name="spans")
        thread.start()
        os.environ[SOCKET_VARIABLE] = path
        try:
            yield
        finally:
            del os.environ[SOCKET_VARIABLE]
            stop.set()
            thread.join()
            shutil.rmtree(folder, ignore_errors=True)


def _is_for_sender(name: str) -> bool:
    """Say which variables the sender gets: what it needs, and so none of our secrets."""
    return name in _PASSED_ON or name.startswith("OTEL_") or name.lower().endswith("_proxy")

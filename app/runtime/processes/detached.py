"""Runs the whole service in the background, for who does not want a terminal for it."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx

from app.domain.errors import ConfigurationError
from app.runtime.embedded.home import ClaimedError, require_unclaimed
from app.runtime.processes.starting import python_command
from app.runtime.settings import Settings

_TIMEOUT_S: Final = 600.0
_INTERVAL_S: Final = 0.1


def answers(url: str) -> bool:
    """Return whether a service at this address is ready."""
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def start_detached(settings: Settings) -> None:
    """Run ``expunge up`` with these settings' data, at their address; return once it answers.

    Its log is beside the data. Ctrl-C here does not reach it.

    Raises:
        ConfigurationError: it did not start; the message ends with its log.
    """
    url, log = f"http://{settings.host}:{settings.port}", settings.data_dir / "service.log"
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("wb") as output:
        service = subprocess.Popen(
            python_command("app.cli", "up"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        while time.monotonic() < deadline and service.poll() is None:
            if answers(url):
                return
            time.sleep(_INTERVAL_S)
    except BaseException:
        service.terminate()
        raise
    service.terminate()
    told = log.read_text(encoding="utf-8")
    log.unlink()
    with suppress(OSError):  # it has written more
        log.parent.rmdir()
    raise ConfigurationError(f"the service did not start:\n{told}")


def stop_detached(data_dir: Path) -> int | None:
    """Stop the service of a data directory, wherever it was started; return its process's id.

    Raises:
        TimeoutError: it has not stopped in time.
    """
    stopped = None
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            require_unclaimed(data_dir)
        except ClaimedError as error:
            if stopped is None and error.holder:
                os.kill(error.holder, signal.SIGTERM)
                stopped = error.holder
            time.sleep(_INTERVAL_S)
        else:
            return stopped
    raise TimeoutError(f"process {stopped} has not stopped; see {data_dir / 'log'}")

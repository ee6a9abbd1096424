"""Starts a separate service with ``expunge up``, for the demo and for measurements."""

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from app.client import ExpungeClient
from app.domain.errors import ConfigurationError
from app.runtime.processes.starting import python_command
from app.runtime.settings import Settings


@contextmanager
def running_service(folder: Path) -> Iterator[ExpungeClient]:
    """Run ``expunge up`` with its data in ``folder/data``; yield a client, then stop it.

    The caller's own ``EXPUNGE_`` variables are not passed on.

    Raises:
        ConfigurationError: it did not start; the message ends with its log.
    """
    port = free_port()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE_")
    } | {"EXPUNGE_DATA_DIR": str(data_dir_in(folder)), "EXPUNGE_PORT": str(port)}
    _run("up", "--detach", environment=environment)
    try:
        key = Settings(data_dir=data_dir_in(folder)).admin_key_file.read_text(encoding="utf-8")
        with ExpungeClient(f"http://127.0.0.1:{port}", key) as client:
            yield client
    finally:
        _run("down", environment=environment)


def _run(*words: str, environment: Mapping[str, str]) -> None:
    command = python_command("app.cli", *words)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigurationError(done.stderr)


def data_dir_in(folder: Path) -> Path:
    """Return the data directory of the service in a folder."""
    return folder / "data"


def trusted_keys_in(folder: Path) -> Path:
    """Return the operator's list of keys of that service."""
    return Settings(data_dir=data_dir_in(folder)).trusted_keys_file


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

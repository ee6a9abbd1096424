"""Secret keys as files that only their owner may read."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from app.domain.errors import ConfigurationError


def create_key_file(path: Path, generate: Callable[[], bytes]) -> bytes:
    """Write a new key with mode 0600 unless the file exists; return the file's content.

    Raises:
        ConfigurationError: others may read an existing file.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_key_file(path)
    with os.fdopen(handle, "wb") as file:
        content = generate()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return content


def read_key_file(path: Path) -> bytes:
    """Return a key file's content.

    Raises:
        ConfigurationError: the file is missing, or others may read it.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} is missing: run 'expunge init' first") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(f"{path} is readable by others: run 'chmod 600 {path}'")
    return path.read_bytes()

"""Secret keys as files that only their owner may read."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from app.domain.errors import ConfigurationError


def create_key_file(path: Path, generate: Callable[[], bytes]) -> bytes:
    """Write a new key atomically with mode 0600 unless the file exists; return its content.

    Raises:
        ConfigurationError: others may read an existing file.
    """
    if path.exists():
        return read_key_file(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = generate()
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, path)
    except FileExistsError:
        return read_key_file(path)
    finally:
        Path(unfinished).unlink()
    return content


def key_file(path: Path, generate: Callable[[], bytes], *, create: bool) -> bytes:
    """Return a key file's content; ``create`` makes a missing one."""
    return create_key_file(path, generate) if create else read_key_file(path)


def read_key_file(path: Path) -> bytes:
    """Return a key file's content, or raise ``ConfigurationError``."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise not_set_up(path) from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(f"{path} is readable by others: run 'chmod 600 {path}'")
    return path.read_bytes()


def not_set_up(missing: Path) -> ConfigurationError:
    """Return what to raise where a service's file or folder is missing."""
    return ConfigurationError(
        f"{missing.absolute()} is missing: for a service that was set up elsewhere, go to its "
        "folder or set EXPUNGE_DATA_DIR to its data directory; for a new and empty one, "
        "run 'expunge init' first"
    )

"""The sealed phase: weights are under their target, and this process has no disk.

Three barriers, each of which holds without the others:

 1. Python's ways to write, to start programs and to connect are refused (``write_guard``).
 2. The kernel refuses every write to a regular file, also to one that is open already, by any code:
    the largest size of a file is zero (RLIMIT_FSIZE). Files in memory, such as those below
    /dev/shm, are regular files too. Log lines of that time go to a pipe, a socket or a terminal, or
    are lost.
 3. Directories for temporary files and caches are paths that not even root can create.

Progress goes to Postgres over its socket.
"""

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# The first optimiser imports this, which makes a cache directory: before the phase, not in it.
import torch._dynamo  # noqa: F401

from workers.seal.write_guard import writes_refused

NOWHERE: Final = "/dev/null/sealed"
_DIRECTORIES: Final = (
    "TMPDIR",
    "TEMP",
    "TMP",
    "HF_HOME",
    "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR",
    "PYTORCH_KERNEL_CACHE_PATH",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME",
    "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME",
)


@contextmanager
def ram_only() -> Iterator[None]:
    """Keep this process from writing to any file until the block ends.

    Raises:
        WriteRefusedError: Python code tried to write, to start a program or to connect.
        OSError: other code tried to write.
    """
    with _no_directories(), _no_file_size(), writes_refused():
        yield


@contextmanager
def _no_file_size() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def _no_directories() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _DIRECTORIES}
    chosen = tempfile.tempdir
    os.environ.update(dict.fromkeys(_DIRECTORIES, NOWHERE))
    tempfile.tempdir = NOWHERE
    try:
        yield
    finally:
        tempfile.tempdir = chosen
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

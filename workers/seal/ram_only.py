"""The sealed phase: while weights have not met their target, this process cannot write to disk.

Three independent barriers:

 1. Python's functions that write, start programs or connect are refused (``write_guard``).
 2. The kernel refuses every write to a regular file, including open ones, by any code: the maximum
    file size is zero (RLIMIT_FSIZE). Files in memory, such as those below /dev/shm, are regular
    files, too. Log lines go to a pipe, a socket or a terminal meanwhile, or are lost.
 3. The directories for temporary files and caches are paths that not even root can create.

Progress is written to Postgres over its socket.

Nothing may be imported for the first time in there: an import may make a folder, start a program or
write what it compiled. So what libraries import only when they first need it is imported before the
barriers close; a test compares what is loaded before and after.
"""

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from app.domain.plan import TrainingKind
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

# What PyTorch's first optimiser step imports, and what resolves the first host name.
_ON_DEMAND: Final = ("torch.profiler._cupti_monitor", "encodings.idna")
_PRIVATE: Final = ("torch._dynamo",)  # for tensors without values; it takes a second


def import_ahead(training: TrainingKind = TrainingKind.RECIPE) -> None:
    """Import what libraries would import while a training of this kind is sealed."""
    for name in (*_ON_DEMAND, *(_PRIVATE if training is TrainingKind.PRIVATE else ())):
        import_module(name)


@contextmanager
def ram_only(training: TrainingKind = TrainingKind.RECIPE) -> Iterator[None]:
    """Keep this process from writing to any file until the block ends.

    ``training`` is the kind of the plan that is carried out.

    Raises:
        WriteRefusedError: Python code tried to write, to start a program or to connect.
        OSError: other code tried to write.
    """
    import_ahead(training)
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

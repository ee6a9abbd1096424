"""Starts processes of our modules, whatever lies in the working directory.

Those for work on foreign input get no setting, key or file of this one: only what is needed to find
Python and its libraries. They print nothing: a traceback could quote their input.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

START: Final = Path(__file__).resolve().parents[3] / "expunge" / "start.py"
PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ", "VIRTUAL_ENV")
_FIXED = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "PYTHONDONTWRITEBYTECODE": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # other pools reserve more than they use
}


def python_command(module: str, *arguments: object) -> list[str]:
    """Return the command; see ``expunge.start`` for where it finds modules."""
    return [sys.executable, "-P", str(START), module, *map(str, arguments)]


def start(
    module: str,
    *arguments: object,
    pipe: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Run a module; ``pipe`` is its standard input and output, ``pass_fds`` are files for it."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        python_command(module, *arguments),
        env={**kept, **_FIXED, "PYTHONPATH": paths},
        cwd=os.sep,
        pass_fds=pass_fds,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must reach only the service, which finishes calls
    )


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage until the block ends, and never look again at what is there by then.

    What modules define stays for as long as their process, and every collection would pass over it.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()

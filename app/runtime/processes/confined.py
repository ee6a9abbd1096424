"""Starts processes that get no setting, key or file of this one, for work on foreign input.

They are given what is needed to find Python and its libraries, and nothing that reveals where the
data are. They print nothing: a traceback could quote their input.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from app.runtime.processes.python import python_command

PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ", "VIRTUAL_ENV")
_FIXED = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "PYTHONDONTWRITEBYTECODE": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # other pools reserve more than they use
}


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

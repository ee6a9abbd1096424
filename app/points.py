"""The labelled points of a run, where tests make it fail.

They do nothing unless ``EXPUNGE_ENVIRONMENT`` is ``test`` and ``EXPUNGE_TEST_POINTS`` names a
directory. A file in it, ``POINT.NUMBER.FAULT``, is one fault, and it is gone before it strikes: the
next try passes. ``FAULT`` is the name of a signal that the process gets, of an error of the
operating system that is raised, or ``pass``, which lets one passage through.
"""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_Measured = TypeVar("_Measured")
_DIRECTORY = (
    os.environ.get("EXPUNGE_TEST_POINTS")
    if os.environ.get("EXPUNGE_ENVIRONMENT") == "test"
    else None
)


def reach(point: str) -> None:
    """Say that a run has come to a point.

    Raises:
        OSError: a test asked for it.
    """
    if _DIRECTORY is not None:
        _strike(Path(_DIRECTORY), point)


def halfway(
    point: str, report: Callable[[int, int, _Measured], None]
) -> Callable[[int, int, _Measured], None]:
    """Return ``report``; where tests ask for faults, one that reaches ``point`` at half the steps.

    Args:
        point: the label.
        report: told of the step (from 1), of how many, and what was measured.
    """
    if _DIRECTORY is None:
        return report

    def reporting(step: int, steps: int, measured: _Measured) -> None:
        report(step, steps, measured)
        if step == (steps + 1) // 2:
            reach(point)

    return reporting


def _strike(directory: Path, point: str) -> None:
    for path in sorted(directory.glob(f"{point}.*")):
        try:
            path.unlink()
        except FileNotFoundError:
            continue  # another process was faster
        fault = path.suffix.removeprefix(".")
        if fault.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[fault])
        elif fault != "pass":
            code = getattr(errno, fault)
            raise OSError(code, os.strerror(code))
        return

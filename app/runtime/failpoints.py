"""The labelled points of a run or call, where tests make it fail.

They do nothing unless ``EXPUNGE_ENVIRONMENT`` is ``test`` and ``EXPUNGE_TEST_POINTS`` names a
directory. A file in it, ``POINT.NUMBER.FAULT``, is one fault; it is removed before the fault
happens, so the next try passes. ``FAULT`` is the name of a signal that the process gets, of an
error of the operating system that is raised, or ``pass``, which lets one passage through.
"""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec

_Measured = ParamSpec("_Measured")
_DIRECTORY = (
    os.environ.get("EXPUNGE_TEST_POINTS")
    if os.environ.get("EXPUNGE_ENVIRONMENT") == "test"
    else None
)


def reach(point: str) -> None:
    """Say that a run has come to a point; ``OSError`` if a test asked for it."""
    fault = _claim(point)
    if fault is not None:
        _strike(fault)


def halfway(
    point: str, report: Callable[Concatenate[int, int, _Measured], None]
) -> Callable[Concatenate[int, int, _Measured], None]:
    """Return ``report``, or one that fails halfway where a test asks for a fault.

    The fault is taken at once: a sealed phase cannot remove files. Steps may be left out of the
    report: others do them.
    """
    fault = _claim(point)
    if fault is None:
        return report

    def reporting(
        step: int, steps: int, /, *measured: _Measured.args, **named: _Measured.kwargs
    ) -> None:
        nonlocal fault
        report(step, steps, *measured, **named)
        if fault is not None and step >= (steps + 1) // 2:
            struck, fault = fault, None
            _strike(struck)

    return reporting


def _claim(point: str) -> str | None:
    """Take the first fault that waits at a point."""
    if _DIRECTORY is None:
        return None
    for path in sorted(Path(_DIRECTORY).glob(f"{point}.*")):
        try:
            path.unlink()
        except FileNotFoundError:
            continue  # another process was faster
        return path.suffix.removeprefix(".")
    return None


def _strike(fault: str) -> None:
    if fault.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[fault])
    elif fault != "pass":
        code = getattr(errno, fault)
        raise OSError(code, os.strerror(code))

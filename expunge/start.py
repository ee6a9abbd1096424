"""Starts our own processes: ``expunge`` itself and, by this file's path, what it starts.

They import nothing from the directory in which they are started, and our packages come before those
that ``PYTHONPATH`` names, where operators keep the factories of their networks: an ``app`` or a
``workers`` of theirs is never taken for ours. Only the standard library may be imported here.
"""

import os
import runpy
import sys
import sysconfig
from pathlib import Path

_OURS = str(Path(__file__).resolve().parent.parent)


def put_ours_first() -> None:
    """Order the places that modules are found in: Python's, ours, installed ones, the operator's.

    Without this, those of ``PYTHONPATH`` would be the first.
    """
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    pythons = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    theirs = [path for path in named if path and path != _OURS and not path.startswith(pythons)]
    others = [path for path in sys.path if path not in {*_working_directory(), _OURS, *theirs}]
    installed = next(
        (index for index, path in enumerate(others) if path.endswith("-packages")), len(others)
    )
    sys.path[:] = [*others[:installed], _OURS, *others[installed:], *theirs]


def _working_directory() -> set[str]:
    """Return the names of the working directory, which an empty entry of ``PYTHONPATH`` means."""
    try:
        return {"", str(Path.cwd())}
    except FileNotFoundError:
        return {""}


def main() -> None:
    """Run the command line."""
    put_ours_first()
    from app.cli.main import main as run  # noqa: PLC0415 - ours, now that it is found

    run()


if __name__ == "__main__":
    put_ours_first()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

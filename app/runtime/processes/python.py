"""The command that runs one of our modules, whatever lies in the working directory."""

import sys
from pathlib import Path
from typing import Final

START: Final = Path(__file__).resolve().parents[3] / "expunge" / "start.py"


def python_command(module: str, *arguments: object) -> list[str]:
    """Return the command; see ``expunge.start`` for where it finds modules."""
    return [sys.executable, "-P", str(START), module, *map(str, arguments)]

"""Environments of programs that do not go together with ours, made from their locks."""

import fcntl
import re
import shutil
import subprocess
import sys
import venv
from hashlib import sha256
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_ENVIRONMENTS = _ROOT / "build" / "environments"


def programs_of(lock: Path, *others: str) -> Path:
    """Return the folder of the programs that a lock's packages, and others, bring.

    An environment is named by what it holds, and stays: whoever wants the same uses it, too.
    """
    content = " ".join([lock.read_text(), *others]).encode()
    folder = _ENVIRONMENTS / sha256(content).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder)
            _install(folder, "--no-deps", "--require-hashes", "--requirement", lock)
            if others:
                _install(folder, "--constraint", _ROOT / "constraints.txt", *others)
            (folder / "complete").touch()
    return folder / "bin"


def bridges_python() -> Path:
    """Return the Python of an environment with the bridges' locked libraries, and our PyTorch."""
    torch = re.search(r"^torch==\S+$", (_ROOT / "constraints.txt").read_text(), re.M)
    if torch is None:
        raise AssertionError("constraints.txt has no torch")
    lock = _ROOT / "examples" / "bridges" / "requirements.lock"
    return programs_of(lock, torch[0]) / "python"


def _install(folder: Path, *what: object) -> None:
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    # Most of what would be compiled is never imported.
    subprocess.run([*pip, "--no-compile", "--only-binary", ":all:", *what], check=True)

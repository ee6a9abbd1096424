"""Finding the servers' programs in their wheels, and running them under the servers' account."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from app.domain.errors import ConfigurationError
from app.embedded.account import ensure_account, let_others_run

# The caller's environment may hold keys; a server's can be read through SQL.
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}


def wheel_folder(package: str) -> Path:
    """Return the folder of an installed package without importing it.

    Raises:
        ConfigurationError: it is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"the Python package {package} is missing; install it, or set EXPUNGE_DATABASE_URL and "
            "EXPUNGE_REDIS_URL to servers of your own"
        )
    return Path(spec.submodule_search_locations[0])


def run_program(
    command: Sequence[str], *, trees: Sequence[Path], cwd: Path, log: Path, timeout_s: float
) -> None:
    """Run a program to its end. Daemons that it leaves behind are no hindrance.

    Args:
        command: the program and its arguments.
        trees: folders that hold the program and what it loads.
        cwd: where it runs.
        log: the file named to the user if it fails.
        timeout_s: after this many seconds it is killed.

    Raises:
        ConfigurationError: it cannot be run, fails or takes too long.
        OSError: a file's mode cannot be changed.
    """
    account = ensure_account()
    if account.is_separate:
        let_others_run(trees)
    name = Path(command[0]).name
    # A file, not a pipe: a daemon would keep the pipe open and us waiting.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                user=account.uid if account.is_separate else None,
                group=account.gid if account.is_separate else None,
                extra_groups=[] if account.is_separate else None,
                umask=0o077,
                start_new_session=True,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigurationError(f"cannot run {command[0]}: {error}; see {log}") from error
        if done.returncode != 0:
            output.seek(0)
            said = " ".join(output.read().decode(errors="replace").split())[-500:]
            raise ConfigurationError(f"{name} failed: {said or done.returncode}; see {log}")

"""Documents whose commands are run as they stand: the fenced blocks marked ``bash``, in order.

Blocks in other languages are for reading: commands that a test machine cannot run are marked
``sh``.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from app.runtime.embedded import EmbeddedServers
from app.runtime.processes.starting import START
from tests.support.patience import PATIENCE_S, until
from tests.support.service import free_port

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOOLS = ("bash", "curl", "jq", "openssl")
"""What the documents' commands use beside ours."""
_BLOCKS = re.compile(r"^```bash\n(.*?)^```$", re.M | re.S)


def blocks(document: str) -> list[str]:
    """Return a document's blocks that are run."""
    return _BLOCKS.findall((DOCS / document).read_text())


class Reader:
    """Someone at a terminal in a directory of their own, who does what documents say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._port = free_port()
        directory.mkdir()
        shutil.copytree(ROOT / "examples", directory / "examples")
        shutil.copytree(ROOT / "deploy", directory / "deploy")

    def follow(self, document: str, *, timeout_s: float = PATIENCE_S) -> str:
        """Run a document's commands; return what they print.

        Raises:
            AssertionError: one fails, or all of them together take too long.
        """
        script = "\n".join(f"echo '§ {n}'\n{block}" for n, block in enumerate(blocks(document), 1))
        output = self.directory / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=self.directory,
                env=self.environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = -signal.SIGKILL
            finally:
                self._end(process)
        if code:
            self.expunge("down")  # what it has started in the background
        printed = output.read_text()
        log = self.directory / ".expunge" / "service.log"
        told = log.read_text()[-2000:] if log.exists() else ""
        assert code == 0, f"exit {code}\n{printed[-3000:]}\n{told}"
        return printed

    def expunge(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run one command."""
        return self._run("expunge", *map(str, words))

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        """Run a program of their own."""
        return self._run(sys.executable, "-c", program)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    @contextmanager
    def service(self, **environment: str) -> Iterator[str]:
        """Run ``expunge up``; yield its address."""
        address = f"http://127.0.0.1:{self._port}"
        with (self.directory / "expunge.log").open("ab") as log:
            process = subprocess.Popen(
                ["expunge", "up"],
                cwd=self.directory,
                env=self.environment() | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            until(lambda: httpx.get(f"{address}/readyz", timeout=PATIENCE_S).is_success)
            yield address
        finally:
            self._end(process)

    def environment(self) -> dict[str, str]:
        """Return the variables of this person's terminal."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE")}
        return kept | {
            "EXPUNGE_PORT": str(self._port),
            "PATH": f"{self._programs()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }

    def _programs(self) -> Path:
        """Return a directory with the ``expunge`` of this working tree."""
        programs = self.directory.with_suffix(".bin")
        programs.mkdir(exist_ok=True)
        expunge = programs / "expunge"
        expunge.write_text(f'#!/bin/sh\nexec {sys.executable} -P {START} app.cli "$@"\n')
        expunge.chmod(0o755)
        return programs

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End what a document that failed has left running."""
        try:
            os.killpg(process.pid, signal.SIGTERM)
        except ProcessLookupError:
            return
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def require_tools(*names: str) -> None:
    """Skip the test if this machine lacks a tool."""
    missing = [tool for tool in names if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@contextmanager
def reader(directory: Path) -> Iterator[Reader]:
    """Yield a reader who has ``TOOLS``; stop the embedded servers that they have started."""
    require_tools(*TOOLS)
    someone = Reader(directory)
    try:
        yield someone
    finally:
        someone.expunge("down")
        EmbeddedServers(directory / ".expunge").stop()

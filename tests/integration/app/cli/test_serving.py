"""The API's server ends by the signal that stops it, after what must still be done."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S, until

PROGRAM = """
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
import uvicorn
from app.cli.serving import run

async def app(scope, receive, send):
    message = await receive()
    await send({"type": message["type"] + ".complete"})
    Path(sys.argv[1]).touch()

@contextmanager
def meanwhile():
    try:
        yield
    finally:
        print("left", flush=True)

# What runs in the background of a shell is started without the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
run(uvicorn.Server(uvicorn.Config(app, port=0, log_config=None)), meanwhile())
print("went on")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_goes_on_meanwhile_ends_before_the_process(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "started")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until((tmp_path / "started").exists)
    process.send_signal(number)
    told, complaints = process.communicate(timeout=PATIENCE_S)
    assert (told, complaints) == (b"left\n", b"")
    assert process.returncode == -number

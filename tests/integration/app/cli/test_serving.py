"""The API's server ends by the signal that stops it, after its last spans are sent."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S, until

PROGRAM = """
import signal
import sys
from pathlib import Path
import uvicorn
from app.cli.serving import run
from app.runtime import spans

class Sender:
    def send(self, span):
        pass

    def close(self):
        print("sent", flush=True)

async def app(scope, receive, send):
    message = await receive()
    await send({"type": message["type"] + ".complete"})
    spans.send_by(Sender)
    spans.hand_over(lambda: [spans.span_of_request("request", begun_ns=0, state="completed")])
    Path(sys.argv[1]).touch()

# What runs in the background of a shell is started without the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
run(uvicorn.Server(uvicorn.Config(app, port=0, log_config=None)))
print("went on")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_last_spans_are_sent_before_the_process_ends(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "started")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until((tmp_path / "started").exists)
    process.send_signal(number)
    told, complaints = process.communicate(timeout=PATIENCE_S)
    assert (told, complaints) == (b"sent\n", b"")
    assert process.returncode == -number

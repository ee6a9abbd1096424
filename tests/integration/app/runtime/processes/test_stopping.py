"""Processes that end with their parents, whatever they hang in."""

import signal
import subprocess
import sys

from tests.support.patience import PATIENCE_S

HANGING = """
import operator, signal
from app.runtime.processes.stopping import stop_with_parent
signal.signal(signal.SIGTERM, lambda *_: None)
stop_with_parent({parent}, hangs_after_s=0.5)
operator.pow(7, 1 << 60)
"""


def test_a_process_that_hangs_in_compiled_code_ends_although_its_parent_was_gone_before() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGING.format(parent=1 << 30)], timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == -signal.SIGALRM

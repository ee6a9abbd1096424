"""The embedded servers' account, created once by whichever process comes first."""

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from app.runtime.embedded.home import ClaimedError, claimed, require_unclaimed
from tests.support.patience import PATIENCE_S

CREATE = """
import sys
from app.runtime.embedded import home

home.SYSTEM_USER = sys.argv[1]
sys.stdin.readline()
print(home.ensure_account().uid, flush=True)
sys.stdin.readline()
print(home.ensure_account().uid)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root creates the account")
def test_processes_that_create_the_account_at_once_get_the_same_one():
    name = f"expunge-{uuid4().hex[:8]}"
    callers = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for _ in range(5)
    ]
    try:
        for caller in callers:
            caller.stdin.write("begin\n")
        at_once = [caller.stdout.readline() for caller in callers]
        afterwards = [caller.communicate("again\n", timeout=PATIENCE_S)[0] for caller in callers]
    finally:
        for caller in callers:
            caller.kill()
            caller.wait()
        subprocess.run(["userdel", name], check=True)

    assert len({*at_once, *afterwards}) == 1
    assert at_once[0].strip().isdigit()


HOLD = """
import sys, time
from pathlib import Path
from app.runtime.embedded.home import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_holder_is_named_until_it_is_gone_even_if_it_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            with pytest.raises(ClaimedError, match=rf"{tmp_path}.*process {holder.pid};"):
                require_unclaimed(tmp_path)
            with pytest.raises(ClaimedError, match=str(holder.pid)), claimed(tmp_path):
                pass
        finally:
            holder.kill()
    assert require_unclaimed(tmp_path)  # its children may still be stopping
    with claimed(tmp_path), pytest.raises(ClaimedError, match=str(os.getpid())):
        require_unclaimed(tmp_path)
    assert not require_unclaimed(tmp_path)


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert not require_unclaimed(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_programs_that_a_holder_starts_do_not_hold_it(tmp_path: Path) -> None:
    with claimed(tmp_path):
        daemon = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        assert not require_unclaimed(tmp_path)
    finally:
        daemon.kill()
        daemon.wait()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("keep")
    (tmp_path / "service.lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError), claimed(tmp_path):  # noqa: PT011 - of whichever kind
        pass
    assert (tmp_path / "other").read_text() == "keep"

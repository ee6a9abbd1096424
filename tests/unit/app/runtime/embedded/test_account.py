"""The embedded servers' account, created once by whichever process comes first."""

import os
import subprocess
import sys
from uuid import uuid4

import pytest

CREATE = """
import sys
from app.runtime.embedded import account

account.SYSTEM_USER = sys.argv[1]
sys.stdin.readline()
print(account.ensure_account().uid, flush=True)
sys.stdin.readline()
print(account.ensure_account().uid)
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
        afterwards = [caller.communicate("again\n", timeout=60)[0] for caller in callers]
    finally:
        for caller in callers:
            caller.kill()
            caller.wait()
        subprocess.run(["userdel", name], check=True)

    assert len({*at_once, *afterwards}) == 1
    assert at_once[0].strip().isdigit()

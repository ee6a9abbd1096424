"""The API starts quickly: it loads nothing of the workers', and what takes long when it is used."""

import subprocess
import sys

_PROGRAM = """
import sys, time
started = time.process_time()
import app.main
print(time.process_time() - started)
print(*sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "opacus", "workers")))
"""
_AS_SERVED = """
import gc, sys
import app.cli
slow = ("scipy.integrate", "scipy.optimize", "scipy.special", "dp_accounting", "sklearn")
print(*(name for name in slow if name in sys.modules))
print(gc.isenabled())
"""


def _printed(program: str) -> list[str]:
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return answer.stdout.splitlines()


def test_the_api_loads_no_torch_and_imports_in_two_seconds_of_processor_time() -> None:
    seconds, loaded = _printed(_PROGRAM)
    assert loaded == ""
    assert float(seconds) < 4  # twice the promise: test machines are busy


def test_the_command_loads_no_accountants_libraries_and_keeps_garbage_collection() -> None:
    slow, collection = _printed(_AS_SERVED)
    assert slow == ""
    assert collection == "True"

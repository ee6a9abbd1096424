"""The API starts quickly: it loads nothing of the workers', and what takes long when it is used."""

import subprocess
import sys

_PROGRAM = """
import sys, time
started = time.process_time()
import fastapi, httpx, psycopg, pyarrow.parquet, pydantic_settings, redis, sqlalchemy.orm
libraries = time.process_time()
import app.cli.application
print((time.process_time() - libraries) / (libraries - started))
print(*sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "workers")))
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
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return answer.stdout.splitlines()


def test_the_api_loads_no_torch_and_imports_about_as_fast_as_its_libraries() -> None:
    """In processor time; both together are about two seconds on an idle machine."""
    of_libraries, loaded = _printed(_PROGRAM)
    assert loaded == ""
    assert float(of_libraries) < 3


def test_the_command_loads_no_accountants_libraries_and_keeps_garbage_collection() -> None:
    slow, collection = _printed(_AS_SERVED)
    assert slow == ""
    assert collection == "True"

"""A process of a ``ProcessPool``: handles one call after another until its server is gone.

It writes nothing, cannot be dumped and holds no secrets: it knows only the calls it received.
"""

import importlib
import os
import resource
import sys
from multiprocessing.connection import Connection
from typing import Any, Final

from app.domain.errors import ExpungeError
from app.runtime.processes.hardening import harden
from app.runtime.processes.stopping import stop_with_parent

_NICE: Final = 5  # the server's own work has priority


def main() -> None:
    """Serve the calls that come through the pipe whose number is the first argument."""
    number, parent, memory_bytes, preload = sys.argv[1:]
    stop_with_parent(int(parent))
    harden()
    os.nice(_NICE)
    importlib.import_module(preload)
    # Limits only allocations: mapped libraries would count for RLIMIT_AS.
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    with Connection(int(number)) as connection:
        connection.send((True, None))
        while True:
            try:
                call = connection.recv()
            except EOFError:
                return
            connection.send(_answer(call))


def _answer(call: Any) -> tuple[bool, object]:  # noqa: ANN401 - a function and its arguments
    """Return whether a call succeeded, and what it returned or raised."""
    function, args, kwargs = call
    try:
        return True, function(*args, **kwargs)
    except (ExpungeError, MemoryError) as error:
        return False, error
    except Exception as error:  # noqa: BLE001 - its message may quote its arguments
        return False, RuntimeError(f"{type(error).__name__} in {function.__module__}")


if __name__ == "__main__":
    main()

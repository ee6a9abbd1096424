"""``python -m workers PART``: the entry point of processes started by ``expunge``."""

import importlib
import os
import sys

from app import logs
from app.processes.hardening import harden
from app.processes.supervisor import stop_with_supervisor

_PARTS = ("worker", "dispatcher")


def main() -> None:
    """Run the part named on the command line; only that part is imported."""
    harden()
    if len(sys.argv) != 2 or sys.argv[1] not in _PARTS:
        sys.exit(f"usage: python -m workers {'|'.join(_PARTS)}")
    logs.configure()
    stop_with_supervisor()
    # Before torch is loaded: OpenMP threads spinning at barriers starve each other on shared cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    importlib.import_module(f"workers.{sys.argv[1]}").main()


if __name__ == "__main__":
    main()

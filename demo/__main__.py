"""``python -m demo``: what `expunge demo` runs."""

import importlib
import os

from app.runtime import logs
from app.runtime.processes.hardening import harden

if __name__ == "__main__":
    harden()
    logs.configure()
    # Before torch is loaded: OpenMP threads spinning at barriers starve each other on shared cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    importlib.import_module("demo.main_job").main()

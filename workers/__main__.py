"""``python -m workers PART``: the entry point of processes started by ``expunge``.

Parts are ``worker``, ``dispatcher``, ``recompute MODEL [MEMBER]``,
``recompute-kit MODEL DIR``, ``check ORDER``, ``calibrate`` and ``backbone``.
"""

import importlib
import os
import sys

from app.domain.errors import ConfigurationError
from app.runtime import logs
from app.runtime.processes.hardening import harden
from app.runtime.processes.starting import uncollected
from app.runtime.processes.supervisor import stop_with_supervisor


def prepare_environment() -> None:
    """Set this process's variables, which its children inherit."""
    # OpenMP threads spinning at barriers starve each other on shared cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Compiled networks run as they were written: a compiler writes files and starts programs, which
    # the sealed phase refuses.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    # cuBLAS sums alike each time; read when PyTorch first uses it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Libraries that load networks show progress, which would fill a log.
    os.environ["TQDM_DISABLE"] = "1"


_PARTS = {
    ("worker", 0): "workers.worker",
    ("dispatcher", 0): "workers.dispatcher",
    ("recompute", 1): "workers.recompute",
    ("recompute", 2): "workers.recompute",
    ("recompute-kit", 2): "workers.recompute",
    ("check", 1): "workers.checking",
    ("calibrate", 0): "workers.calibrating",
    ("backbone", 0): "workers.data.backbone_file",
}
"""Modules by the part's name and how many arguments it has."""


def main() -> None:
    """Run the part named on the command line; only that part is imported."""
    harden()
    module = _PARTS.get(("".join(sys.argv[1:2]), len(sys.argv) - 2))
    if module is None:
        sys.exit(
            "usage: python -m workers worker|dispatcher|recompute MODEL [MEMBER]|"
            "recompute-kit MODEL DIR|check ORDER|calibrate|backbone"
        )
    logs.configure()
    stop_with_supervisor()
    prepare_environment()
    with uncollected():
        part = importlib.import_module(module)
    try:
        part.main()
    except ConfigurationError as error:
        sys.exit("error: " + str(error).replace("\n", "\nerror: "))


if __name__ == "__main__":
    main()

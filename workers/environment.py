"""Variables that libraries read as they are loaded."""

import os


def prepare_environment() -> None:
    """Set this process's variables, which its children inherit."""
    # OpenMP threads spinning at barriers starve each other on shared cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Compiled networks run as they were written: a compiler writes files and starts programs, which
    # the sealed phase refuses.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    # Libraries that load networks show progress, which would fill a log.
    os.environ["TQDM_DISABLE"] = "1"

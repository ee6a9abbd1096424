"""The processes that decode files of imports, to be killed as an operating system does."""

import psutil

from tests.support.command_lines import words_of
from tests.support.patience import until

_MODULE = "app.registry.datasets.imports.decoder"


def decoder_of(pid: int) -> psutil.Process:
    """Return the process that decodes for another one, as soon as it has its name."""

    def found() -> psutil.Process:
        children = psutil.Process(pid).children(recursive=True)
        return next(child for child in children if _MODULE in words_of(child))

    return until(found)


def killed(process: psutil.Process) -> None:
    """Kill a process and wait until it is over; its parent still has to collect it."""
    process.kill()
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        pass

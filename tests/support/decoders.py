"""The processes that decode files of imports, to be killed as an operating system does."""

import psutil

from app.registry.datasets.imports.decoding import DECODER_BYTES
from tests.support.command_lines import words_of
from tests.support.patience import until

_WORDS = {"app.registry.datasets.decoder", str(DECODER_BYTES)}
"""The module, and the memory of one that decodes imports: uploads have less."""


def decoder_of(pid: int) -> psutil.Process:
    """Return the last process that decodes for another one, as soon as it has its name."""

    def found() -> psutil.Process:
        children = psutil.Process(pid).children(recursive=True)
        decoders = [child for child in children if {*words_of(child)} >= _WORDS]
        return max(decoders, key=lambda child: child.create_time())

    return until(found)


def killed(process: psutil.Process) -> None:
    """Kill a process and wait until it is over; its parent still has to collect it."""
    process.kill()
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        pass

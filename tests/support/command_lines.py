"""What the processes that run now were called with."""

import psutil


def words_of(process: psutil.Process) -> list[str]:
    """Return a process's command and arguments; none if it has ended, collected or not."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def line_of(process: psutil.Process) -> str:
    """Return a process's command line; empty if it has ended."""
    return " ".join(words_of(process))

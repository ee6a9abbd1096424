"""What a process asked the kernel for, as Debian's strace saw it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.patience import PATIENCE_S

CALLS = (
    "openat,open,creat,write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,connect,prlimit64,"
    "clone,clone3"
)
_CALL = re.compile(r"^(\d+)\s+(\w+)\((.*)$")
_RESUMED = re.compile(r"^(\d+)\s+<\.\.\. clone3? resumed>.* = (\d+)$")
_MADE = re.compile(r" = (\d+)$")
_SOCKET = re.compile(r"^\d+<(?:UNIX-STREAM|UNIX|socket):\[(\d+)")
_CONNECTED = re.compile(r'^\d+<[A-Z-]+:\[(\d+).*sun_path="([^"]+)"')


def why_unavailable() -> str | None:
    """Return why strace cannot run here, after trying to install it; None if it can."""
    if shutil.which("strace") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "--no-install-recommends", "strace"]
        try:
            subprocess.run(command, timeout=PATIENCE_S, capture_output=True, check=False)
        except subprocess.TimeoutExpired:
            return "strace is not installed, and apt-get did not install it within a minute"
    if shutil.which("strace") is None:
        return "strace is not installed, and apt-get cannot install it"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "this system does not allow tracing"


def traced(output: Path, command: list[str]) -> list[str]:
    """Return the command that runs ``command`` under strace, all its threads and children too."""
    options = ["-f", "-yy", "-s", "32", "--seccomp-bpf", "-e", f"trace={CALLS}", "-o", str(output)]
    return ["strace", *options, *command]


@dataclass
class Phase:
    """What a process did between two settings of its largest file size: to zero, and back.

    Attributes:
        opened_to_write: the arguments of calls that open a file for writing.
        written: what was written to: a socket's path, or strace's own words for anything else.
    """

    opened_to_write: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


def sealed_phases(trace: Path) -> list[Phase]:
    """Return the sealed phases of all processes of a trace; the last of each may have no end."""
    phases: list[Phase] = []
    peers: dict[str, str] = {}
    going: dict[int, Phase] = {}
    process_of = _processes(trace)
    for thread, call, arguments in _calls(trace):
        process = process_of.get(thread, thread)
        phase = going.get(process)
        if call == "prlimit64" and "RLIMIT_FSIZE, {" in arguments:
            if "RLIMIT_FSIZE, {rlim_cur=0," in arguments:
                phases.append(going.setdefault(process, Phase()))
            else:
                going.pop(process, None)
        elif call == "connect":
            if connected := _CONNECTED.match(arguments):
                peers[connected[1]] = connected[2]
        elif phase is None:
            continue
        elif call in ("openat", "open", "creat"):
            if call == "creat" or re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)", arguments):
                phase.opened_to_write.append(arguments)
        elif call not in ("prlimit64", "clone", "clone3"):
            socket = _SOCKET.match(arguments)
            target = arguments.split(",", 1)[0]
            phase.written.append(peers.get(socket[1], target) if socket else target)
    return phases


def _processes(trace: Path) -> dict[int, int]:
    """Return which process each thread but its first belongs to."""
    process_of: dict[int, int] = {}
    waiting: set[int] = set()
    with trace.open(errors="replace") as lines:
        for line in lines:
            if (call := _CALL.match(line)) and call[2] in ("clone", "clone3"):
                if "CLONE_THREAD" not in call[3]:
                    continue
                if made := _MADE.search(line):
                    process_of[int(made[1])] = int(call[1])
                else:
                    waiting.add(int(call[1]))
            elif (resumed := _RESUMED.match(line)) and int(resumed[1]) in waiting:
                waiting.remove(int(resumed[1]))
                process_of[int(resumed[2])] = int(resumed[1])
    return {thread: _first(thread, process_of) for thread in process_of}


def _first(thread: int, maker_of: Mapping[int, int]) -> int:
    while thread in maker_of:
        thread = maker_of[thread]
    return thread


def _calls(trace: Path) -> Iterator[tuple[int, str, str]]:
    with trace.open(errors="replace") as lines:
        for line in lines:
            if call := _CALL.match(line):
                yield int(call[1]), call[2], call[3]

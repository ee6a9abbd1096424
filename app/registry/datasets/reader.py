"""The sandboxed process that decodes uploaded files: little memory, no secrets, no open files.

Input and output are frames. A task is two: its parameters as JSON, then a file. The answer is the
file's parts as Arrow record batches, each in a frame, then an empty frame, or JSON that describes
the error. The process prints nothing.
"""

import contextlib
import json
import resource
import sys
from collections.abc import Mapping
from dataclasses import astuple
from typing import IO, Any

import pyarrow as pa

from app.domain.errors import InvalidRecordsError, PayloadTooLargeError, RowProblem
from app.domain.schema import TableSchema
from app.registry.datasets.uploads import checked_parts
from app.runtime.processes.frames import receive, send
from app.runtime.processes.hardening import harden


def confine(memory_bytes: int) -> None:
    """Restrict this process: limited memory, no files, no core dump, no debugger."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    harden()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _carry_out(order: dict[str, Any], content: bytearray, answers: IO[bytes]) -> None:
    schema = TableSchema.from_json(order["schema"])
    most = order["max_bytes"]
    try:
        for part in checked_parts(content, schema, max_bytes=most):
            send(answers, part.serialize())
        verdict = b""
    except (InvalidRecordsError, PayloadTooLargeError) as error:
        verdict = json.dumps(verdict_of(error)).encode()
    send(answers, verdict)


def verdict_of(error: InvalidRecordsError | PayloadTooLargeError) -> dict[str, Any]:
    """Return what ``refuse`` raises again in another process."""
    if isinstance(error, InvalidRecordsError):
        problems = [astuple(problem) for problem in error.problems]
        return {"problems": problems, "count": error.count}
    return {"too_large": str(error)}


def refuse(verdict: Mapping[str, Any]) -> None:
    """Raise the error that a process has sent."""
    if "too_large" in verdict:
        raise PayloadTooLargeError(verdict["too_large"])
    problems = [RowProblem(*problem) for problem in verdict["problems"]]
    raise InvalidRecordsError(problems, verdict["count"])


def main() -> None:
    """Process tasks until the input ends or a limit of this process is exceeded."""
    orders, answers = sys.stdin.buffer, sys.stdout.buffer
    memory_bytes, most = int(sys.argv[1]), int(sys.argv[2])
    confine(memory_bytes)
    while True:
        order = json.loads(receive(orders, most=most))
        _carry_out(order, receive(orders, most=most), answers)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError, MemoryError):
        main()

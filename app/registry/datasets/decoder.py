"""The sandboxed process that decodes files of others: little memory, no secrets, no open files.

An order is a frame of JSON. The file of an upload is the next frame; of an import, it asks for what
it needs. Every answer begins with a byte that says what it is: ``R`` asks for a range, which comes
as the next frame of the input; ``P`` is a part as an Arrow record batch; ``V`` ends an order, with
JSON: an error, or an imported file's number of rows. The process prints nothing.
"""

import contextlib
import io
import json
import os
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from itertools import accumulate
from threading import Lock
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from app.domain.errors import InvalidRecordsError, PayloadTooLargeError, RowProblem
from app.domain.schema import TableSchema
from app.registry.datasets.uploads import (
    ReadingPlan,
    checked_parts,
    opened,
    read_parts,
    reading_plan,
)
from app.runtime.processes.frames import receive, send
from app.runtime.processes.hardening import harden

OUT_OF_MEMORY: Final = 3
"""How it exits when a file takes more memory than it may have."""

MOST_PART_BYTES: Final = 256 << 20
MOST_RANGE_BYTES: Final = 32 << 20
MOST_BUFFERED_BYTES: Final = 64 << 20
"""The largest row group that is fetched as a whole; of others, columns are read in pieces."""
OVERHEAD_BYTES: Final = 64 << 20
"""By how much a frame may be longer than the file of an upload, or what it unpacks to."""
_PIECE_BYTES: Final = 4 << 20
_MOST_ORDER_BYTES: Final = 64 << 20


class _Remote(io.RawIOBase):
    """A file that the process at the other end reads."""

    def __init__(self, size: int, orders: IO[bytes], answers: IO[bytes], lock: Lock) -> None:
        self._size = size
        self._at = 0
        self._orders = orders
        self._answers = answers
        self._lock = lock

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, fewer at the end."""
        left = max(0, self._size - self._at)
        wanted = left if size < 0 else min(size, left)
        found = bytearray()
        while len(found) < wanted:
            found += self._range(min(wanted - len(found), MOST_RANGE_BYTES))
        return bytes(found)

    def _range(self, size: int) -> bytearray:
        with self._lock:
            send(self._answers, b"R" + json.dumps([self._at, size]).encode())
            content = receive(self._orders, most=size)
        if len(content) != size:
            raise EOFError
        self._at += size
        return content


def _checked_plan(file: pq.ParquetFile, schema: TableSchema) -> ReadingPlan:
    """Return how a file is read; raise what its columns are refused for, without a row."""
    plan = reading_plan(file, schema)
    if plan.row_bytes > MOST_PART_BYTES:
        raise PayloadTooLargeError(f"it announces rows of {plan.row_bytes} bytes")
    plan.check(
        pa.RecordBatch.from_arrays(
            [_empty(each.type) for each in file.schema_arrow], schema=file.schema_arrow
        )
    )
    plan.problems.raise_any()
    return plan


def _empty(kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.nulls(0, kind.storage_type))
    return pa.nulls(0, kind)


def _parts(
    file: pq.ParquetFile, remote: _Remote, plan: ReadingPlan, start: int
) -> Iterator[pa.RecordBatch]:
    """Yield checked parts from a row on; ``InvalidRecordsError`` of the first with a fault."""
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    for group, end in enumerate(accumulate(sizes)):
        if end <= start:
            continue
        row = end - sizes[group]
        # A row group is fetched at once if it is small, else in pieces.
        metadata = file.metadata.row_group(group)
        chunks = (metadata.column(number) for number in range(metadata.num_columns))
        small = sum(chunk.total_compressed_size for chunk in chunks) <= MOST_BUFFERED_BYTES
        for part in read_parts(
            pq.ParquetFile(
                pa.PythonFile(remote, mode="r"),
                metadata=file.metadata,
                pre_buffer=small,
                buffer_size=0 if small else _PIECE_BYTES,
            ),
            plan,
            [group],
        ):
            left = part.slice(max(0, start - row))
            if left.num_rows:
                plan.problems.first = row + part.num_rows - left.num_rows
                checked = plan.check(left)
                plan.problems.raise_any()
                if checked.nbytes > MOST_PART_BYTES:
                    raise PayloadTooLargeError("its rows are too large when they are unpacked")
                yield checked
            row += part.num_rows
        if row != end:
            reason = f"row group {group} has other rows than it announces"
            raise InvalidRecordsError([RowProblem(None, plan.id_column, reason)], 1)


def _carry_out(order: dict[str, Any], orders: IO[bytes], answers: IO[bytes]) -> None:
    lock = Lock()
    schema = TableSchema.from_json(order["schema"])
    verdict: dict[str, Any] = {}
    parts: Iterable[pa.RecordBatch] = ()
    try:
        if "max_bytes" in order:
            most = order["max_bytes"]
            content = receive(orders, most=most + OVERHEAD_BYTES)
            parts = checked_parts(content, schema, max_bytes=most)
        else:
            remote = _Remote(order["size"], orders, answers, lock)
            file = opened(pa.PythonFile(remote, mode="r"))
            plan = _checked_plan(file, schema)
            verdict = {"rows": file.metadata.num_rows}
            if order["start"] is not None:
                parts = _parts(file, remote, plan, order["start"])
        for part in parts:
            packed = part.serialize()
            with lock:
                send(answers, b"P" + packed.to_pybytes())
    except InvalidRecordsError as error:
        problems = [astuple(problem) for problem in error.problems]
        verdict = {"problems": problems, "count": error.count}
    except PayloadTooLargeError as error:
        verdict = {"too_large": str(error)}
    send(answers, b"V" + json.dumps(verdict).encode())


def refuse(verdict: Mapping[str, Any]) -> None:
    """Raise the error that the process has sent, if it has."""
    if "too_large" in verdict:
        raise PayloadTooLargeError(verdict["too_large"])
    if "problems" in verdict:
        problems = [RowProblem(*problem) for problem in verdict["problems"]]
        raise InvalidRecordsError(problems, verdict["count"])


def main() -> None:
    """Process orders until the input ends, or ``OUT_OF_MEMORY``."""
    orders, answers = sys.stdin.buffer, sys.stdout.buffer
    memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    harden()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    try:
        while True:
            _carry_out(json.loads(receive(orders, most=_MOST_ORDER_BYTES)), orders, answers)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):
        main()

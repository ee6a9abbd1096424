"""Decodes files of imports in a separate process with limited memory: see ``decoder.py``.

The process asks for ranges of the file, which are read here. Its output is validated again for what
Arrow relies on.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Protocol

import pyarrow as pa

from app.domain.errors import DecodingBrokeOffError, PayloadTooLargeError
from app.domain.schema import TableSchema
from app.registry.datasets.columns.typed import arrow_schema
from app.registry.datasets.decoder import (
    MOST_PART_BYTES,
    MOST_RANGE_BYTES,
    OUT_OF_MEMORY,
    refuse,
)
from app.runtime.processes.frames import LONGEST_S, FrameProcess, receive, send

DECODER_BYTES: Final = 1 << 30
"""The memory for decoding a file, whatever its size."""

_LAST_S: Final = 10.0
"""How long a process may take to end after its last answer."""

_OVERHEAD_BYTES: Final = 1 << 20


class RandomAccess(Protocol):
    """A file that is read in ranges."""

    @property
    def size(self) -> int:
        """Its length in bytes."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes."""


class Decoder(FrameProcess):
    """A process that decodes the files of one dataset, one after the other."""

    def __init__(self, schema: TableSchema, *, memory_bytes: int = DECODER_BYTES) -> None:
        self._schema = schema.to_json()
        self._columns = arrow_schema(schema)
        self._memory_bytes = memory_bytes
        super().__init__("app.registry.datasets.decoder", memory_bytes)

    def rows_of(self, file: RandomAccess) -> int:
        """Return how many rows a file has whose columns fit; no row is read."""
        for _ in self._carry_out(file, None):
            pass
        return self._rows

    def parts(self, file: RandomAccess, start: int) -> Iterator[pa.RecordBatch]:
        """Yield a file's records from a row on, in the columns of ``arrow_schema``."""
        yield from self._carry_out(file, start)

    def _carry_out(self, file: RandomAccess, start: int | None) -> Iterator[pa.RecordBatch]:
        order = {"schema": self._schema, "size": file.size, "start": start}
        try:
            send(self.orders, json.dumps(order).encode())
            while (frame := self._frame())[:1] != b"V":
                if frame[:1] == b"R":
                    offset, size = json.loads(frame[1:])
                    send(self.orders, _range(file, offset, size))
                    continue
                part = pa.ipc.read_record_batch(pa.py_buffer(frame)[1:], self._columns)
                part.validate(full=True)
                yield part
        except (EOFError, BrokenPipeError) as error:
            raise self._ended() from error
        verdict = json.loads(frame[1:])
        refuse(verdict)
        self._rows = int(verdict["rows"])

    def _ended(self) -> PayloadTooLargeError | DecodingBrokeOffError:
        """Return why the process gave no more answers; it is over afterwards."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_S)
        self._process.kill()
        status = self._process.wait()
        if status == OUT_OF_MEMORY:
            return PayloadTooLargeError(
                f"decoding it takes more than {self._memory_bytes} bytes of memory: write it with "
                "smaller rows or row groups"
            )
        return DecodingBrokeOffError(
            f"decoding it broke off: its process was killed, took {LONGEST_S:.0f} s for one part, "
            f"or crashed (status {status})"
        )

    def _frame(self) -> bytearray:
        with self.timed():
            return receive(self.answers, most=MOST_PART_BYTES + _OVERHEAD_BYTES)


def _range(file: RandomAccess, offset: int, size: int) -> bytes:
    if not (offset >= 0 and 0 < size <= MOST_RANGE_BYTES and offset + size <= file.size):
        raise EOFError
    return file.read_at(offset, size)

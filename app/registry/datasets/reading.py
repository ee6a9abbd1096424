"""Decodes uploaded files in a separate process with limited memory.

A small file can unpack to any size, and decoders have had vulnerabilities. So all uploads are
decoded by ``app.registry.datasets.decoder``, which inherits no secret and no open file. Its output
is validated again for what Arrow relies on. A process is not reused after a large file or a
failure.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final

import pyarrow as pa

from app.domain.errors import InvalidRecordsError, PayloadTooLargeError
from app.domain.schema import TableSchema
from app.registry.datasets.columns.typed import arrow_schema
from app.registry.datasets.decoder import OVERHEAD_BYTES, refuse
from app.registry.datasets.uploads import Upload, joined
from app.runtime.processes.frames import LONGEST_S, FrameProcess, receive, send

READERS: Final = 2
"""How many files are read at once; further ones wait."""

WORKING_BYTES: Final = 512 << 20
"""The memory for reading a file in addition to the file itself."""

_FEW_BYTES: Final = 16 << 20


class Readers:
    """The processes that read files of ``max_bytes`` or fewer, packed and unpacked."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._turns = threading.BoundedSemaphore(READERS)
        self._idle: list[_Reader] = []

    def read(self, content: bytes, schema: TableSchema) -> Upload:
        """Read and check a Parquet file."""
        with self._turns:
            reader = self._taken()
            does_well = False
            try:
                order = {"schema": schema.to_json(), "max_bytes": self._max_bytes}
                upload = joined(reader.parts(content, order, arrow_schema(schema)), schema)
                does_well = len(content) + upload.content.nbytes < _FEW_BYTES
            except InvalidRecordsError:
                does_well = len(content) < _FEW_BYTES
                raise
            finally:
                if does_well and reader.is_done and not self._idle:
                    self._idle.append(reader)
                else:
                    reader.end()
            return upload

    def _taken(self) -> "_Reader":
        with suppress(IndexError):  # another thread may take the last one
            reader = self._idle.pop()
            if reader.is_alive:
                return reader
            reader.end()
        return _Reader(self._max_bytes)


@cache
def readers_of(max_bytes: int) -> Readers:
    """Return this process's readers for files of this size."""
    return Readers(max_bytes)


class _Reader(FrameProcess):
    """One reader process; ``is_done`` says whether its output is complete."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__("app.registry.datasets.decoder", max_bytes + WORKING_BYTES)
        self.is_done = True

    @property
    def is_alive(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    def parts(
        self, content: bytes, order: dict[str, Any], columns: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the parts of a file, which have these columns."""
        self.is_done = False
        most = order["max_bytes"] + OVERHEAD_BYTES
        try:
            with self.timed():
                send(self.orders, json.dumps(order).encode())
                send(self.orders, content)
                while (frame := receive(self.answers, most=most))[:1] == b"P":
                    part = pa.ipc.read_record_batch(pa.py_buffer(frame)[1:], columns)
                    part.validate(full=True)
                    yield part
            self.is_done = True
            refuse(json.loads(frame[1:]))
        except (EOFError, BrokenPipeError) as error:
            raise PayloadTooLargeError(
                f"reading the file of {len(content)} bytes took more than {WORKING_BYTES} bytes of "
                f"additional memory or {LONGEST_S:.0f} s; send it in parts"
            ) from error

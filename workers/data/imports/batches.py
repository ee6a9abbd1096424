"""Files as batches of records of about one size, whatever their row groups and their number."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from app.domain.errors import (
    DecodingBrokeOffError,
    FileProblem,
    ImportFailedError,
    InvalidRecordsError,
    PayloadTooLargeError,
    SourceUnavailableError,
)
from app.domain.table_schema import RecordSchema
from app.registry.datasets.imports.decoding import Decoder
from app.registry.datasets.imports.service import Position, SourceFile
from app.registry.datasets.uploads import Upload, joined
from workers.data.imports.sources import SourceFileReader

BATCH_BYTES: Final = 64 << 20
BATCH_ROWS: Final = 1 << 18
DECODING_ERRORS: Final = (InvalidRecordsError, PayloadTooLargeError, DecodingBrokeOffError)


@dataclass(frozen=True)
class Batch:
    """Records that are added together.

    Attributes:
        upload: the records; None at the end of files without any.
        since, at: where the import is before them and after them.
    """

    upload: Upload | None
    since: Position
    at: Position


class Batches:
    """Reads files on from a position."""

    def __init__(
        self,
        decoder: Decoder,
        open_file: Callable[[str], SourceFileReader],
        schema: RecordSchema,
        *,
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._decoder = decoder
        self._open = open_file
        self._schema = schema
        self._rows = batch_rows
        self._bytes = batch_bytes
        self._waiting: list[pa.RecordBatch] = []

    def of(self, files: Sequence[SourceFile], start: Position) -> Iterator[Batch]:
        """Yield all records from a position on.

        What comes before a row that cannot be read is yielded before the error is raised.

        Raises:
            ImportFailedError: a row cannot be read, or a file takes too much memory.
            DecodingBrokeOffError: the process that decodes was killed or crashed.
            SourceUnavailableError: a file cannot be read now, or was changed.
        """
        since = at = start
        for number in range(start.files_done, len(files)):
            row = start.row_in_file if number == start.files_done else 0
            reader = self._open(files[number].name)
            try:
                if reader.version != files[number].version:  # the position is not of this one
                    raise SourceUnavailableError(f"{files[number].name}: it was just changed")
                for part in self._parts(reader, files[number], row):
                    self._waiting.append(part)
                    row += part.num_rows
                    at = Position(number, row)
                    if self._is_full():
                        reader.require_same()
                        yield self._batch(since, at)
                        since = at
                reader.require_same()
            except ImportFailedError:
                if self._waiting:
                    yield self._batch(since, at)
                raise
            finally:
                reader.close()
            at = Position(number + 1, 0)
        if since != at:
            yield self._batch(since, at)

    def _parts(
        self, reader: SourceFileReader, file: SourceFile, row: int
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._decoder.parts(reader, row)
        except DECODING_ERRORS as error:
            raise told_of(file.name, error) from error

    def _is_full(self) -> bool:
        rows = sum(part.num_rows for part in self._waiting)
        size = sum(int(part.nbytes) for part in self._waiting)
        return rows >= self._rows or size >= self._bytes

    def _batch(self, since: Position, at: Position) -> Batch:
        parts, self._waiting = self._waiting, []
        return Batch(joined(parts, self._schema) if parts else None, since, at)


def told_of(
    name: str, error: InvalidRecordsError | PayloadTooLargeError | DecodingBrokeOffError
) -> ImportFailedError | DecodingBrokeOffError:
    """Return what ends an attempt at a file, with the places of all faults."""
    if isinstance(error, DecodingBrokeOffError):
        return DecodingBrokeOffError(f"{name}: {error}")
    problems = getattr(error, "problems", ())
    named = [FileProblem(**{**asdict(problem), "file": name}) for problem in problems]
    return ImportFailedError(f"{name}: {error}", named)

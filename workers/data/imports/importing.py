"""One import, from its lease to its end; why it fails is recorded with it.

 1. List the files and look at each one's footer: nothing is stored unless all columns fit. A file
    that was changed since an earlier attempt is read again from its beginning.
 2. Read them, on a thread, in batches. Each batch is added in one transaction with how far the
    import is then, so that an attempt that dies is taken up where it was. What the dataset holds
    already counts as it does in a push.

No plaintext reaches a disk: a sandboxed process decodes what is read, and shards are encrypted.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Final, Unpack

import pyarrow as pa
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from app.domain.errors import (
    ConflictError,
    DecodingBrokeOffError,
    FileProblem,
    ImportFailedError,
    InvalidRecordsError,
    PayloadTooLargeError,
    RunInterruptedError,
    SourceUnavailableError,
)
from app.domain.places import Place
from app.domain.schema import TableSchema
from app.registry.datasets.comparison import KeyedUpload
from app.registry.datasets.imports import repository, service
from app.registry.datasets.imports.decoding import Decoder
from app.registry.datasets.imports.service import Position, SourceFile
from app.registry.datasets.service import PushResult, definition_of
from app.registry.datasets.tables import DatasetRow, ImportRow
from app.registry.datasets.uploads import Upload, joined
from app.runtime.database import Database
from app.runtime.failpoints import reach
from app.runtime.logs import describe
from app.runtime.processes.stopping import StopSignal
from app.services import Services
from workers.data.imports.sources import Source, SourceFileReader, source_of
from workers.leases.attempts import attempted, is_permanent
from workers.leases.holding import Holding, Term
from workers.leases.outages import outlast_outages

_log = logging.getLogger("expunge.worker")

_BATCH_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = 1 << 18
_DECODING_ERRORS: Final = (InvalidRecordsError, PayloadTooLargeError, DecodingBrokeOffError)


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
        schema: TableSchema,
        *,
        batch_rows: int = _BATCH_ROWS,
        batch_bytes: int = _BATCH_BYTES,
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
        except _DECODING_ERRORS as error:
            raise _told_of(file.name, error) from error

    def _is_full(self) -> bool:
        rows = sum(part.num_rows for part in self._waiting)
        size = sum(int(part.nbytes) for part in self._waiting)
        return rows >= self._rows or size >= self._bytes

    def _batch(self, since: Position, at: Position) -> Batch:
        parts, self._waiting = self._waiting, []
        return Batch(joined(parts, self._schema) if parts else None, since, at)


class ImportLease(Holding):
    """One attempt at one import, identified by ``import_id`` and ``fencing_token``."""

    gives_way = True

    def __init__(self, database: Database, row: ImportRow, **term: Unpack[Term]) -> None:
        super().__init__(database, f"import {row.id}", **term)
        self.import_id = row.id
        self.fencing_token = row.fencing_token
        self.dataset_id = row.dataset_id
        self.url = row.url
        self.files = None if row.files is None else [SourceFile(**file) for file in row.files]
        self.position = service.position_of(row)

    @classmethod
    def take(cls, database: Database, import_id: str, **term: Unpack[Term]) -> "ImportLease | None":
        """Lease an import that waits; None if it does not."""
        with database.transaction() as session:
            row = service.lease(session, import_id, lease_s=term["lease_s"])
            return None if row is None else cls(database, row, **term)

    def _beat(self, connection: Connection) -> None:
        repository.heartbeat(connection, self.import_id, self.fencing_token, lease_s=self._lease_s)


def attempt(services: Services, import_id: str, stop: StopSignal) -> None:
    """Carry out an import, if it waits for that.

    Why it fails is recorded with it, for its caller; the log names no file.
    """
    lease = ImportLease.take(
        services.database, import_id, lease_s=services.settings.lease_s, stop=stop
    )
    if lease is None:
        return
    _log.info("import %s", import_id)

    def give_up(session: Session, error: Exception) -> None:
        row = service.holder(session, lease.import_id, lease.fencing_token)
        if isinstance(error, RunInterruptedError):
            service.hand_back(session, row)
            return
        service.give_up_attempt(
            session,
            row,
            reason=describe(error),
            problems=error.problems if isinstance(error, ImportFailedError) else (),
            permanent=is_permanent(error) and not isinstance(error, ConflictError),
            max_attempts=services.settings.max_attempts,
        )

    if attempted(
        services.database,
        lease,
        work=lambda: _carry_out(services, lease),
        give_up=give_up,
        told=lambda error: type(error).__name__,
    ):
        _log.info("import %s: completed", import_id)


def _carry_out(services: Services, lease: ImportLease) -> None:
    """Carry out a leased import; outages of our own stores are waited out.

    Raises:
        LeaseLostError: another worker holds the import, or it was cancelled.
        RunInterruptedError: this worker was asked to stop, or a run waits.
        ImportFailedError, PlaceNotAllowedError, GoneError, ConflictError: it cannot go on.
        SourceUnavailableError, DecodingBrokeOffError: the files cannot be read now.
    """
    with services.database.transaction() as session:
        dataset = session.get_one(DatasetRow, lease.dataset_id)
        _, schema = definition_of(session, dataset)
    source = source_of(Place.parse(lease.url), services.settings)
    try:
        with Decoder(schema) as decoder:
            files, start = _listed(services, lease, source, decoder)
            reach("import_listed")
            batches = Batches(decoder, source.open, schema).of(files, start)
            _add_all(services, lease, files, batches)
    finally:
        source.close()
    outlast_outages(lease.check, lambda: _complete(services, lease))


def _listed(
    services: Services, lease: ImportLease, source: Source, decoder: Decoder
) -> tuple[list[SourceFile], Position]:
    """Return the import's files and where to go on, and record both."""
    known = lease.files
    if known is None:
        files = [_examined(source, decoder, name, lease) for name in source.list()]
        start = Position(0, 0)
    else:
        files, start = _again(source, decoder, known, lease)
    if (files, start) != (known, lease.position):

        def note() -> None:
            with services.database.transaction() as session:
                row = service.holder(session, lease.import_id, lease.fencing_token)
                service.note_files(row, files, start)

        outlast_outages(lease.check, note)
    return files, start


def _again(
    source: Source, decoder: Decoder, known: list[SourceFile], lease: ImportLease
) -> tuple[list[SourceFile], Position]:
    """Look again at the files that are left; changed ones count anew."""
    start = lease.position
    files = known[: start.files_done]
    for file in known[start.files_done :]:
        files.append(_examined(source, decoder, file.name, lease, known=file))
    if (
        files[start.files_done : start.files_done + 1]
        != known[start.files_done : start.files_done + 1]
    ):
        start = Position(start.files_done, 0)
    return files, start


def _examined(
    source: Source,
    decoder: Decoder,
    name: str,
    lease: ImportLease,
    *,
    known: SourceFile | None = None,
) -> SourceFile:
    lease.check()
    reader = source.open(name)
    try:
        if known is not None and reader.version == known.version:
            return known
        return SourceFile(name, reader.version, decoder.rows_of(reader))
    except _DECODING_ERRORS as error:
        raise _told_of(name, error) from error
    finally:
        reader.close()


def _add_all(
    services: Services, lease: ImportLease, files: Sequence[SourceFile], batches: Iterator[Batch]
) -> None:
    """Add all batches; the next one is read while one is added."""
    records, looks_new = services.records, True

    def read() -> tuple[Batch, KeyedUpload | None] | None:
        batch = next(batches, None)
        if batch is None or batch.upload is None:
            return None if batch is None else (batch, None)
        try:
            return batch, records.keyed(lease.dataset_id, batch.upload)
        except InvalidRecordsError as error:
            name = files[batch.since.files_done].name
            raise _told_of(f"{name} from row {batch.since.row_in_file} on", error) from error

    with ThreadPoolExecutor(1, thread_name_prefix="import") as reading:
        coming = reading.submit(read)
        while (found := coming.result()) is not None:
            lease.check()
            coming = reading.submit(read)
            looks_new = _add(services, lease, *found, looks_new=looks_new)
            del found
            reach("import_batch_added")


def _add(
    services: Services,
    lease: ImportLease,
    batch: Batch,
    keyed: KeyedUpload | None,
    *,
    looks_new: bool,
) -> bool:
    """Add a batch; return whether all of it was new."""

    def move_on(result: PushResult, session: Session) -> None:
        row = service.holder(session, lease.import_id, lease.fencing_token)
        service.advance(row, result, since=batch.since, at=batch.at)

    def add() -> PushResult:
        nothing = PushResult(added=0, already_present=0)
        with services.database.transaction() as session:
            row = service.holder(session, lease.import_id, lease.fencing_token)
            if service.position_of(row) == batch.at:  # committed, and the answer was lost
                return nothing  # added again, records that were forgotten since would come back
            if keyed is None:
                move_on(nothing, session)
                return nothing
        return services.records.store(
            lease.dataset_id, keyed, part_of=lease.import_id, looks_new=looks_new, also=move_on
        )

    result = outlast_outages(lease.check, add)
    return keyed is None or result.added == len(keyed.record_keys)


def _complete(services: Services, lease: ImportLease) -> None:
    with services.database.transaction() as session:
        row = service.holder(session, lease.import_id, lease.fencing_token)
        service.complete(session, row)


def _told_of(
    name: str, error: InvalidRecordsError | PayloadTooLargeError | DecodingBrokeOffError
) -> ImportFailedError | DecodingBrokeOffError:
    """Return what ends an attempt at a file, with the places of all faults."""
    if isinstance(error, DecodingBrokeOffError):
        return DecodingBrokeOffError(f"{name}: {error}")
    problems = getattr(error, "problems", ())
    named = [FileProblem(**{**asdict(problem), "file": name}) for problem in problems]
    return ImportFailedError(f"{name}: {error}", named)

"""One import, from its lease to its end; why it fails is recorded with it.

 1. List the files and look at each one's footer: nothing is stored unless all columns fit. A file
    that was changed since an earlier attempt is read again from its beginning.
 2. Read them, on a thread, in batches. Each batch is added in one transaction with how far the
    import is then, so that an attempt that dies is taken up where it was. What the dataset holds
    already counts as it does in a push.

No plaintext reaches a disk: a sandboxed process decodes what is read, and shards are encrypted.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, ImportFailedError, RunInterruptedError
from app.domain.places import Place
from app.registry.datasets.comparison import KeyedUpload
from app.registry.datasets.imports import service
from app.registry.datasets.imports.decoding import Decoder
from app.registry.datasets.imports.service import Position, SourceFile
from app.registry.datasets.service import PushResult, definition_of
from app.registry.datasets.tables import DatasetRow
from app.runtime.failpoints import reach
from app.runtime.logs import describe
from app.runtime.processes.stopping import StopSignal
from app.services import Services
from workers.data.imports.batches import DECODING_ERRORS, Batch, Batches, told_of
from workers.data.imports.lease import ImportLease
from workers.data.imports.sources import Source, source_of
from workers.leases.attempts import attempted, is_permanent
from workers.leases.outages import outlast_outages

_log = logging.getLogger("expunge.worker")


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
        _, schema, encoding = definition_of(dataset)
    source = source_of(Place.parse(lease.url), services.settings)
    try:
        with Decoder(schema, encoding) as decoder:
            files, start = _listed(services, lease, source, decoder)
            reach("import_listed")
            batches = Batches(decoder, source.open, schema).of(files, start)
            _add_all(services, lease, batches)
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
    except DECODING_ERRORS as error:
        raise told_of(name, error) from error
    finally:
        reader.close()


def _add_all(services: Services, lease: ImportLease, batches: Iterator[Batch]) -> None:
    """Add all batches; the next one is read while one is added."""
    records, looks_new = services.records, True

    def read() -> tuple[Batch, KeyedUpload | None] | None:
        batch = next(batches, None)
        if batch is None or batch.upload is None:
            return None if batch is None else (batch, None)
        return batch, records.keyed(lease.dataset_id, batch.upload)

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
        if keyed is None:
            with services.database.transaction() as session:
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

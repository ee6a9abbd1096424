"""Blobs: written once, adopted by a transaction, shredded for good."""

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from app.domain.errors import CorruptObjectError, GoneError, KeyStoreError, ObjectStoreError
from app.evidence.log.tables import LogEntryRow
from app.ledger import withdrawal
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database import Database
from app.runtime.locations import key_store_dir
from app.services import Services
from app.storage import file_keys
from app.storage.blobs import Blobs, adopt, doom, doom_attempt, reserve_for_run
from app.storage.file_keys import FileKeyStore
from app.storage.objects import LocalObjectStore, ObjectReader, ObjectStore
from app.storage.stores import key_store
from app.storage.tables import BlobRow
from tests.support.key_keepers import EVERY
from tests.support.patience import until
from tests.support.stored import live, pending
from tests.support.workshop import Workshop

pytestmark = pytest.mark.parametrize("keeper", EVERY, indirect=True)

MIB = 1024 * 1024


def _state(services: Services, blob_id: str) -> str:
    with services.database.transaction() as session:
        return session.get_one(BlobRow, blob_id).state


def _file(services: Services, blob_id: str) -> Path:
    return services.settings.data_dir / "blobs" / blob_id


def test_a_blob_lives_from_adoption_to_shredding(services: Services) -> None:
    blob = pending(services.blobs, "weights", b"content")
    assert _state(services, blob.id) == "pending"
    with services.database.transaction() as session:
        adopt(session, blob.id)
    assert _state(services, blob.id) == "live"
    assert services.blobs.sweep() == 0
    assert services.blobs.read(blob.id) == b"content"

    with services.database.transaction() as session:
        doom(session, blob.id)
    assert services.blobs.read(blob.id) == b"content"
    assert services.blobs.sweep() == 1

    assert _state(services, blob.id) == "shredded"
    assert not _file(services, blob.id).exists()
    with pytest.raises(GoneError):
        services.blobs.read(blob.id)
    assert services.blobs.sweep() == 0


def test_dooming_that_is_rolled_back_shreds_nothing(services: Services) -> None:
    blob = pending(services.blobs, "weights", b"content")
    with services.database.transaction() as session:
        adopt(session, blob.id)
    with services.database.transaction() as session:
        doom(session, blob.id)
        session.flush()
        session.rollback()

    services.blobs.sweep()

    assert services.blobs.read(blob.id) == b"content"


def test_what_no_transaction_writes_any_more_is_shredded_and_the_rest_is_left(
    services: Services,
) -> None:
    blobs = services.blobs
    abandoned = pending(blobs, "shard", b"abandoned")
    with services.database.transaction() as session:
        empty = blobs.reserve(session, "shard")
    with services.database.transaction() as session:
        own = blobs.put(session, "shard", b"being written")

        assert blobs.sweep() == 2
        assert blobs.sweep() == 0

        adopt(session, own.id)
    assert _state(services, abandoned.id) == _state(services, empty) == "shredded"
    assert blobs.read(own.id) == b"being written"


def test_a_sweep_of_one_dataset_leaves_the_others(services: Services) -> None:
    blobs = services.blobs
    with services.database.transaction() as session:
        mine, other = (blobs.put(session, "shard", b"", dataset_id=i).id for i in ("ds_1", "ds_2"))

    assert blobs.sweep("ds_1") == 1

    assert (_state(services, mine), _state(services, other)) == ("shredded", "pending")


def test_what_was_given_up_cannot_be_adopted(services: Services) -> None:
    """A process that slept too long must not publish bytes that are gone."""
    blob = pending(services.blobs, "weights", b"content")
    services.blobs.sweep()

    with pytest.raises(GoneError), services.database.transaction() as session:
        adopt(session, blob.id)


class Unreliable:
    """An object store that can be switched off; otherwise it is the real one."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.is_down = False
        self.deletions = 0

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        self._require_up()
        self._objects.write(name, parts)

    def open_range(self, name: str, start: int, stop: int) -> ObjectReader:
        self._require_up()
        return self._objects.open_range(name, start, stop)

    def delete(self, name: str) -> None:
        self.deletions += 1
        self._require_up()
        self._objects.delete(name)

    def names(self) -> Iterator[str]:
        return self._objects.names()

    def _require_up(self) -> None:
        if self.is_down:
            raise ObjectStoreError("the object store does not answer")


@pytest.fixture
def keys(services: Services) -> FileKeyStore:
    return key_store(services.settings)


def _doomed(services: Services, blobs: Blobs, content: bytes) -> str:
    blob = live(blobs, "weights", content)
    with services.database.transaction() as session:
        doom(session, blob.id)
    return blob.id


def test_shredding_needs_no_object_store_and_the_object_goes_later(
    services: Services, keys: FileKeyStore, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    objects = Unreliable(LocalObjectStore(services.settings.data_dir / "blobs"))
    blobs = Blobs(services.database, objects, keys, clock=lambda: now)
    doomed = [_doomed(services, blobs, bytes([number]) * 100) for number in range(5)]
    objects.is_down = True

    assert blobs.sweep() == 5

    assert {_state(services, blob_id) for blob_id in doomed} == {"shredded"}
    assert list(keys.blob_ids()) == []
    assert objects.deletions == 3  # a store that is down is not asked for each of them
    assert len(list(objects.names())) == 5
    assert "is delayed: the object store does not answer" in caplog.text
    for blob_id in doomed:
        with pytest.raises(GoneError):
            blobs.read(blob_id)

    objects.is_down = False
    assert blobs.sweep() == 0
    assert len(list(objects.names())) == 5  # it is left alone for a while
    now = 31.0
    assert blobs.sweep() == 0
    assert list(objects.names()) == []
    assert objects.deletions == 8
    blobs.sweep()
    assert objects.deletions == 8


def test_the_log_tells_of_a_retired_version_though_its_object_cannot_be_deleted(
    workshop: Workshop, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = workshop.train()
    stored = services.settings.data_dir / "blobs" / first.blob_id
    with services.database.transaction() as session:
        version = session.get_one(VersionRow, first.id)
        model = session.get_one(ModelRow, version.model_id)
        withdrawal.retire(session, model, version, reason="withdrawn")
    monkeypatch.setattr("app.storage.objects.erase", _no_space)

    services.clean_up()

    with services.database.transaction() as session:
        kinds = session.scalars(select(LogEntryRow.kind)).all()
        assert session.get_one(VersionRow, first.id).state == "shredded"
    assert "version.shredded" in kinds
    assert stored.exists()


def _no_space(path: Path) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_key_that_cannot_be_destroyed_leaves_its_blob_doomed_and_the_others_shredded(
    services: Services, keys: FileKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = (_doomed(services, services.blobs, b"content") for _ in "12")
    erase = file_keys.erase

    def failing(path: Path) -> None:
        if path.name == stuck:
            _no_space(path)
        erase(path)

    monkeypatch.setattr(file_keys, "erase", failing)
    with pytest.raises(KeyStoreError, match="Input/output error"):
        services.blobs.sweep()
    assert (_state(services, stuck), _state(services, other)) == ("doomed", "shredded")
    assert _file(services, stuck).exists()
    monkeypatch.undo()
    assert services.blobs.sweep() == 1
    assert _state(services, stuck) == "shredded"


def _reserved(services: Services) -> str:
    """Return a blob of a run that goes on."""
    with services.database.transaction() as session:
        return reserve_for_run(session, "weights", run_id="run", dataset_id="ds")


def _take_over(services: Services) -> None:
    """End the run's attempt, and shred what it has written so far."""
    with services.database.transaction() as session:
        doom_attempt(session, "run")
    services.blobs.sweep()


def test_a_run_writes_across_transactions_and_sweeps(services: Services) -> None:
    blob_id = _reserved(services)
    services.blobs.sweep()
    services.blobs.fill(blob_id, b"content")
    services.blobs.sweep()
    with services.database.transaction() as session:
        adopt(session, blob_id)
    _take_over(services)
    assert services.blobs.read(blob_id) == b"content"


def test_nothing_is_written_once_the_attempt_is_over(
    services: Services, keys: FileKeyStore
) -> None:
    blob_id = _reserved(services)
    _take_over(services)

    with pytest.raises(GoneError):
        services.blobs.fill(blob_id, b"content")

    assert not keys.holds(blob_id)
    assert not _file(services, blob_id).exists()


class Overtaken(LocalObjectStore):
    """An object store whose writer sleeps, before it writes, until its attempt is over."""

    def __init__(self, services: Services, *, dies: bool) -> None:
        super().__init__(services.settings.data_dir / "blobs")
        self._services = services
        self._dies = dies

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        _take_over(self._services)
        super().write(name, parts)
        if self._dies:
            raise SystemExit


def test_a_writer_that_wakes_up_too_late_leaves_nothing(
    services: Services, keys: FileKeyStore
) -> None:
    blob_id = _reserved(services)
    late = Blobs(services.database, Overtaken(services, dies=False), keys)

    with pytest.raises(GoneError):
        late.fill(blob_id, b"content")

    assert not keys.holds(blob_id)
    services.blobs.sweep()
    assert not _file(services, blob_id).exists()
    assert _state(services, blob_id) == "shredded"


def test_a_writer_that_wakes_up_too_late_and_is_killed_leaves_bytes_that_nobody_can_read(
    services: Services, keys: FileKeyStore
) -> None:
    blob_id = _reserved(services)
    with pytest.raises(SystemExit):
        Blobs(services.database, Overtaken(services, dies=True), keys).fill(blob_id, b"content")
    assert _file(services, blob_id).exists()
    assert not keys.holds(blob_id)

    objects = LocalObjectStore(services.settings.data_dir / "blobs")
    now = 0.0
    blobs = Blobs(services.database, objects, keys, clock=lambda: now)
    blobs.sweep()  # it looks for such objects at its start, and every hour
    assert not _file(services, blob_id).exists()
    objects.write(blob_id, [b"once more"])
    keys.create(blob_id)
    blobs.sweep()
    assert _file(services, blob_id).exists()
    now = 3601.0
    blobs.sweep()
    assert not _file(services, blob_id).exists()
    assert not keys.holds(blob_id)


@pytest.mark.parametrize("filled_before", [False, True])
def test_a_transaction_that_stands_still_for_too_long_leaves_nothing(
    services: Services, keys: FileKeyStore, filled_before: bool
) -> None:
    """Postgres ends it, as that of a process that is frozen; then it writes nothing more."""
    impatient = Database(str(services.settings.database_url), idle_in_transaction_s=1.0)

    def write() -> None:
        with impatient.transaction() as session:
            blob_ids.append(services.blobs.reserve(session, "shard"))
            if filled_before:
                services.blobs.fill(blob_ids[0], b"content", session=session)
            until(lambda: services.blobs.sweep() == 1)
            services.blobs.fill(blob_ids[0], b"content", session=session)

    blob_ids: list[str] = []
    with pytest.raises(DBAPIError):
        write()
    impatient.dispose()
    assert not keys.holds(blob_ids[0])
    services.blobs.sweep()
    assert not _file(services, blob_ids[0]).exists()
    assert _state(services, blob_ids[0]) == "shredded"


def test_filling_twice_leaves_the_last_content(services: Services) -> None:
    """As after a commit whose answer was lost."""
    blob_id = _reserved(services)
    services.blobs.fill(blob_id, b"first")
    again = services.blobs.fill(blob_id, b"the second")
    assert services.blobs.read(blob_id) == b"the second"
    assert (again.size_bytes, len(again.sha256)) == (10, 64)


PART_EDGES = [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 16, 3 * MIB + 17]


@pytest.mark.parametrize("start", PART_EDGES)
def test_a_range_holds_just_its_bytes_in_chunks_of_bounded_size(
    services: Services, start: int
) -> None:
    content = os.urandom(PART_EDGES[-1])
    blob = pending(services.blobs, "weights", content)
    assert hashlib.sha256(content).hexdigest() == blob.sha256
    for stop in (edge for edge in PART_EDGES if edge >= start):
        part = services.blobs.open_range(blob.id, start, stop)
        chunks = list(part)
        assert b"".join(chunks) == content[start:stop]
        assert all(0 < len(chunk) <= MIB for chunk in chunks)


@pytest.mark.parametrize("size", [0, 1, MIB, 2 * MIB])
def test_whole_blobs_of_any_size(services: Services, size: int) -> None:
    content = os.urandom(size)
    blob = pending(services.blobs, "weights", content)
    assert services.blobs.read(blob.id) == content
    stored = _file(services, blob.id).read_bytes()
    assert len(stored) == 16 + size + 16 * max(1, size // MIB)
    assert size < 64 or content[:64] not in stored


def test_a_range_reads_only_the_chunks_that_it_needs(services: Services) -> None:
    """A chunk that is forged does no harm to the others, and not a byte of it is handed out."""
    content = os.urandom(4 * MIB)
    blob = pending(services.blobs, "weights", content)
    stored = bytearray(_file(services, blob.id).read_bytes())
    stored[16 + 2 * (MIB + 16) + 500_000] ^= 1
    _file(services, blob.id).write_bytes(stored)

    assert b"".join(services.blobs.open_range(blob.id, 10, 2 * MIB)) == content[10 : 2 * MIB]
    assert b"".join(services.blobs.open_range(blob.id, 3 * MIB, 4 * MIB)) == content[3 * MIB :]
    part = services.blobs.open_range(blob.id, 2 * MIB - 5, 4 * MIB)
    assert next(part) == content[2 * MIB - 5 : 2 * MIB]
    with pytest.raises(CorruptObjectError, match="chunk 2 is forged"):
        next(part)
    with pytest.raises(CorruptObjectError):
        services.blobs.read(blob.id)


@pytest.mark.parametrize(
    "change", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b[: 16 + MIB + 16]]
)
def test_an_object_of_another_length_is_not_opened(
    services: Services, change: Callable[[bytes], bytes]
) -> None:
    blob = pending(services.blobs, "weights", os.urandom(2 * MIB))
    path = _file(services, blob.id)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CorruptObjectError):
        services.blobs.open_range(blob.id, 0, 10)


def test_two_objects_cannot_change_places_even_with_their_keys(services: Services) -> None:
    one, two = (
        pending(services.blobs, "weights", b"1" * 50),
        pending(services.blobs, "weights", b"2" * 50),
    )
    _swap(_file(services, one.id), _file(services, two.id))
    for blob in (one, two):
        with pytest.raises(CorruptObjectError):
            services.blobs.read(blob.id)
    wrapped = key_store_dir(services.settings) / "wrapped"
    _swap(wrapped / one.id, wrapped / two.id)
    for blob in (one, two):
        with pytest.raises(KeyStoreError):
            services.blobs.read(blob.id)


def _swap(one: Path, two: Path) -> None:
    one.rename(one.with_suffix(".swap"))
    two.rename(one)
    one.with_suffix(".swap").rename(two)


def test_a_reader_that_holds_the_key_is_stopped_when_it_is_destroyed(
    services: Services, keys: FileKeyStore
) -> None:
    content = os.urandom(3 * MIB)
    blob = pending(services.blobs, "weights", content)
    part = services.blobs.open_range(blob.id, 0, 3 * MIB)
    assert next(part) == content[:MIB]
    keys.destroy(blob.id)
    with pytest.raises(GoneError):
        next(part)


def test_what_the_ledger_calls_shredded_is_not_read_whatever_the_stores_hold(
    services: Services,
) -> None:
    """As when a key store is restored from a backup."""
    blob = pending(services.blobs, "weights", b"content")
    with services.database.transaction() as session:
        session.get_one(BlobRow, blob.id).state = "shredded"
    for read in (lambda: services.blobs.read(blob.id), lambda: _part(services, blob.id)):
        with pytest.raises(GoneError):
            read()


def _part(services: Services, blob_id: str) -> list[bytes]:
    return list(services.blobs.open_range(blob_id, 0, 1))


def test_rotation_is_done_when_due_and_logged(services: Services, keys: FileKeyStore) -> None:
    blob = pending(services.blobs, "weights", b"content")
    services.rotate_keys()
    (period,) = (key_store_dir(services.settings) / "periods").iterdir()
    yesterday = time.time() - 86401
    os.utime(period, (yesterday, yesterday))

    services.rotate_keys()

    assert not period.exists()
    assert services.blobs.read(blob.id) == b"content"
    with services.database.transaction() as session:
        (entry,) = session.scalars(select(LogEntryRow)).all()
    assert '"data_keys":1' in entry.body
    assert entry.kind == "storage_keys.rotated"

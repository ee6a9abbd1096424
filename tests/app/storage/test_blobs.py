"""Blobs: written once, adopted by a transaction, shredded for good."""

import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, update

from app.domain.errors import GoneError
from app.services import Services
from app.storage.objects import LocalObjectStore
from app.storage.tables import BlobRow


def _state(services: Services, blob_id: str) -> str:
    with services.database.transaction() as session:
        return session.get_one(BlobRow, blob_id).state


def _age(services: Services, blob_id: str) -> None:
    with services.database.transaction() as session:
        session.execute(
            update(BlobRow)
            .where(BlobRow.id == blob_id)
            .values(created_at=func.now() - timedelta(hours=2))
        )


def _file(services: Services, blob_id: str) -> Path:
    return services.settings.data_dir / "blobs" / blob_id


def test_a_blob_lives_from_adoption_to_shredding(services: Services) -> None:
    blob = services.blobs.put("weights", b"content")
    assert _state(services, blob.id) == "pending"
    with services.database.transaction() as session:
        services.blobs.adopt(session, blob.id)
    assert _state(services, blob.id) == "live"
    assert services.blobs.sweep() == 0
    assert services.blobs.read(blob.id) == b"content"

    with services.database.transaction() as session:
        services.blobs.doom(session, blob.id)
    assert services.blobs.read(blob.id) == b"content"
    assert services.blobs.sweep() == 1

    assert _state(services, blob.id) == "shredded"
    assert not _file(services, blob.id).exists()
    with pytest.raises(GoneError):
        services.blobs.read(blob.id)
    assert services.blobs.sweep() == 0


def test_dooming_that_is_rolled_back_shreds_nothing(services: Services) -> None:
    blob = services.blobs.put("weights", b"content")
    with services.database.transaction() as session:
        services.blobs.adopt(session, blob.id)
    with services.database.transaction() as session:
        services.blobs.doom(session, blob.id)
        session.flush()
        session.rollback()

    services.blobs.sweep()

    assert services.blobs.read(blob.id) == b"content"


def test_an_abandoned_blob_is_shredded_and_a_young_one_is_left(services: Services) -> None:
    old, young = services.blobs.put("shard", b"old"), services.blobs.put("shard", b"young")
    empty = services.blobs.reserve("shard")
    _age(services, old.id)
    _age(services, empty)

    assert services.blobs.sweep() == 2

    assert _state(services, old.id) == _state(services, empty) == "shredded"
    assert services.blobs.read(young.id) == b"young"


def test_what_was_given_up_cannot_be_adopted(services: Services) -> None:
    """A process that slept too long must not publish bytes that are gone."""
    blob = services.blobs.put("weights", b"content")
    _age(services, blob.id)
    services.blobs.sweep()

    with pytest.raises(GoneError), services.database.transaction() as session:
        services.blobs.adopt(session, blob.id)


def test_deleting_overwrites_the_bytes(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    content = os.urandom(3 * 1024 * 1024 + 17)
    store.write("blob", content)
    other_name = tmp_path / "same-inode"
    os.link(tmp_path / "objects" / "blob", other_name)

    store.delete("blob")

    assert other_name.read_bytes() == bytes(len(content))
    assert list(store.names()) == []


def test_only_the_owner_can_enter_and_an_unfinished_object_is_not_there(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    store.write("blob", b"content")
    assert (tmp_path / "objects").stat().st_mode & 0o077 == 0
    assert (tmp_path / "objects" / "blob").stat().st_mode & 0o077 == 0

    (tmp_path / "objects" / "half.part").write_bytes(b"con")
    with pytest.raises(GoneError):
        store.read("half")
    with pytest.raises(GoneError):
        store.open_range("half", 0, 3)
    store.delete("half")
    assert list(store.names()) == ["blob"]


def test_two_sweeps_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    failures: list[OSError] = []
    for number in range(100):
        store.write(f"blob-{number}", b"x" * 100)

    def sweep() -> None:
        try:
            for number in range(100):
                store.delete(f"blob-{number}")
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=sweep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert list(store.names()) == []


def test_a_range_holds_just_its_bytes_in_chunks_of_bounded_size(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    content = os.urandom(3 * 1024 * 1024 + 17)
    store.write("blob", content)
    for start, stop in (
        (0, len(content)),
        (5, 5),
        (7, 2 * 1024 * 1024),
        (len(content) - 1, len(content)),
    ):
        chunks = list(store.open_range("blob", start, stop))
        assert b"".join(chunks) == content[start:stop]
        assert all(0 < len(chunk) <= 1024 * 1024 for chunk in chunks)


def test_a_read_that_meets_the_shredder_ends_and_yields_no_foreign_byte(tmp_path: Path) -> None:
    """The bytes are overwritten in place, so whoever has the file open would read zeros."""
    store = LocalObjectStore(tmp_path / "objects")
    content = b"x" * (4 * 1024 * 1024)
    store.write("blob", content)
    reading = store.open_range("blob", 0, len(content))
    assert next(reading) == content[: 1024 * 1024]

    store.delete("blob")

    with pytest.raises(GoneError):
        next(reading)
    reading.close()


def test_reads_that_race_with_the_shredder_are_right_or_refused(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    content = b"x" * 2_000_000
    foreign: list[str] = []

    def read(name: str) -> None:
        while True:
            try:
                wrong = any(
                    set(chunk) != {120} for chunk in store.open_range(name, 0, len(content))
                )
                wrong |= store.read(name) != content
            except GoneError:
                return
            if wrong:
                foreign.append(name)

    for number in range(20):
        store.write(f"blob-{number}", content)
        readers = [threading.Thread(target=read, args=[f"blob-{number}"]) for _ in range(3)]
        for reader in readers:
            reader.start()
        store.delete(f"blob-{number}")
        for reader in readers:
            reader.join()
    assert foreign == []


def test_a_deletion_that_was_cut_off_is_finished_by_the_next(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    store.write("blob", b"content")
    (tmp_path / "objects" / "blob").rename(tmp_path / "objects" / "blob.doomed")
    assert list(store.names()) == ["blob"]
    other_name = tmp_path / "same-inode"
    os.link(tmp_path / "objects" / "blob.doomed", other_name)

    store.delete("blob")

    assert other_name.read_bytes() == bytes(7)
    assert list(store.names()) == []

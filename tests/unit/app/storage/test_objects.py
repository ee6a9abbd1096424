"""The local object store: files that are there as a whole, and overwritten when they go."""

import os
import threading
from pathlib import Path

import pytest

from app.domain.errors import CorruptObjectError, GoneError, ObjectStoreError
from app.storage.objects import LocalObjectStore

MIB = 1024 * 1024


def whole(store: LocalObjectStore, name: str) -> bytes:
    """Read an object piece by piece."""
    size = store.open_range(name, 0, 1).object_size
    reader = store.open_range(name, 0, size)
    try:
        return b"".join(reader.read(min(MIB, size - at)) for at in range(0, size, MIB))
    finally:
        reader.close()


def test_deleting_overwrites_the_bytes(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    content = os.urandom(3 * 1024 * 1024 + 17)
    store.write("blob", [content[:5], content[5:]])
    other_name = tmp_path / "same-inode"
    os.link(tmp_path / "objects" / "blob", other_name)

    store.delete("blob")

    assert other_name.read_bytes() == bytes(len(content))
    assert list(store.names()) == []


def test_only_the_owner_can_enter_and_an_unfinished_object_is_not_there(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    store.write("blob", [b"content"])
    assert (tmp_path / "objects").stat().st_mode & 0o077 == 0
    assert (tmp_path / "objects" / "blob").stat().st_mode & 0o077 == 0

    (tmp_path / "objects" / "half.part").write_bytes(b"con")
    with pytest.raises(GoneError):
        store.open_range("half", 0, 3)
    store.delete("half")
    assert list(store.names()) == ["blob"]


def test_two_sweeps_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    failures: list[OSError] = []
    for number in range(100):
        store.write(f"blob-{number}", [b"x" * 100])

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


def test_a_part_is_read_in_pieces_and_ends_where_it_was_said_to(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    content = os.urandom(2 * MIB + 17)
    store.write("blob", [content])
    reader = store.open_range("blob", 7, len(content) - 1)
    assert reader.object_size == len(content)
    assert reader.read(MIB) + reader.read(10) == content[7 : MIB + 17]
    rest = len(content) - 1 - (MIB + 17)
    with pytest.raises(CorruptObjectError):
        reader.read(rest + 1)
    reader.close()


def test_a_read_that_meets_the_shredder_ends_and_yields_no_foreign_byte(tmp_path: Path) -> None:
    """The bytes are overwritten in place, so whoever has the file open would read zeros."""
    store = LocalObjectStore(tmp_path / "objects")
    content = b"x" * (4 * MIB)
    store.write("blob", [content])
    reading = store.open_range("blob", 0, len(content))
    assert reading.read(MIB) == content[:MIB]

    store.delete("blob")

    with pytest.raises(GoneError):
        reading.read(MIB)
    reading.close()


def test_what_the_file_system_refuses_is_told_as_the_stores_error(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    (tmp_path / "objects" / "blob.part").mkdir()
    with pytest.raises(ObjectStoreError, match="cannot be written: Is a directory"):
        store.write("blob", [b"content"])
    with pytest.raises(ObjectStoreError, match="cannot be deleted"):
        store.delete("blob")


def test_reads_that_race_with_the_shredder_are_right_or_refused(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    content = b"x" * 2_000_000
    foreign: list[str] = []

    def read(name: str) -> None:
        while True:
            try:
                wrong = whole(store, name) != content
            except GoneError:
                return
            if wrong:
                foreign.append(name)

    for number in range(20):
        store.write(f"blob-{number}", [content])
        readers = [threading.Thread(target=read, args=[f"blob-{number}"]) for _ in range(3)]
        for reader in readers:
            reader.start()
        store.delete(f"blob-{number}")
        for reader in readers:
            reader.join()
    assert foreign == []


def test_a_deletion_that_was_cut_off_is_finished_by_the_next(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects")
    store.write("blob", [b"content"])
    (tmp_path / "objects" / "blob").rename(tmp_path / "objects" / "blob.doomed")
    assert list(store.names()) == ["blob"]
    other_name = tmp_path / "same-inode"
    os.link(tmp_path / "objects" / "blob.doomed", other_name)

    store.delete("blob")

    assert other_name.read_bytes() == bytes(7)
    assert list(store.names()) == []

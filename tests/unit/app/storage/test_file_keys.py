"""The key store of files: what it gives back, what it destroys, and what old copies are worth.

All this holds wherever the periods' keys are kept.
"""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from app.domain.errors import ConfigurationError, ExpungeError, GoneError, KeyStoreError
from app.runtime.keyfiles import create_key_file
from app.storage import file_keys
from app.storage.file_keys import FileKeyStore
from tests.support.key_keepers import EVERY, Directory, Keeper, wrapping_of

DAY_S = 86400.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture(params=EVERY)
def keeper(request: pytest.FixtureRequest) -> Keeper:
    return Directory() if request.param == "directory" else request.getfixturevalue(request.param)


@pytest.fixture
def opened(root: Path, keeper: Keeper) -> Callable[..., FileKeyStore]:
    """Open the store as another process does, which remembers nothing."""
    return lambda **how: FileKeyStore(root, wrapping=wrapping_of(keeper), **how)


@pytest.fixture
def store(opened: Callable[..., FileKeyStore]) -> FileKeyStore:
    return opened(create=True)


def test_a_key_is_given_back_until_it_is_destroyed(
    root: Path, store: FileKeyStore, opened: Callable[..., FileKeyStore]
) -> None:
    one, two = store.create("one"), store.create("two")
    assert len(one) == 32
    assert one != two
    again = opened()
    assert (again.get("one"), again.get("two")) == (one, two)

    store.destroy("one")

    assert not again.holds("one")
    with pytest.raises(GoneError):
        again.get("one")
    assert again.get("two") == two
    assert list(again.blob_ids()) == ["two"]
    store.destroy("one")


def test_no_key_lies_in_the_files_but_the_periods_where_nothing_wraps_them(
    root: Path, store: FileKeyStore, keeper: Keeper
) -> None:
    key = store.create("one")
    assert all(key not in path.read_bytes() for path in root.rglob("*") if path.is_file())
    bare = (root / "periods" / "1").stat().st_size == 32
    assert bare == isinstance(keeper, Directory)


def test_only_the_owner_may_look(
    root: Path, store: FileKeyStore, opened: Callable[..., FileKeyStore]
) -> None:
    store.create("one")
    store.rotate()
    paths = [root, *root.rglob("*")]
    assert len(paths) == 7
    assert all(path.stat().st_mode & 0o077 == 0 for path in paths)
    (root / "wrapped").chmod(0o750)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        opened()


def test_a_store_that_is_not_there_is_not_made_by_chance(
    root: Path, opened: Callable[..., FileKeyStore]
) -> None:
    """An unmounted disk must not look like a store whose keys were all destroyed."""
    with pytest.raises(ConfigurationError, match="expunge init"):
        opened()
    assert not root.exists()
    for name in ("periods", "wrapped"):
        (root / name).mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    create_key_file(root / "store", lambda: b"name")
    with pytest.raises(ConfigurationError, match="holds no keys"):
        opened()


def test_what_is_destroyed_is_overwritten(root: Path, store: FileKeyStore, tmp_path: Path) -> None:
    store.create("one")
    os.link(root / "wrapped" / "one", tmp_path / "wrapped")
    os.link(root / "periods" / "1", tmp_path / "period")
    store.destroy("one")
    store.rotate()
    assert (tmp_path / "wrapped").read_bytes() == bytes(64)
    assert not any((tmp_path / "period").read_bytes())


def test_rotation_keeps_the_keys_and_destroys_what_wrapped_them(
    root: Path, store: FileKeyStore
) -> None:
    keys = {name: store.create(name) for name in ("one", "two", "three")}
    before = {path.name: path.read_bytes() for path in (root / "wrapped").iterdir()}

    assert store.rotate() == 3

    assert [path.name for path in (root / "periods").iterdir()] == ["2"]
    assert {name: store.get(name) for name in keys} == keys
    after = {path.name: path.read_bytes() for path in (root / "wrapped").iterdir()}
    assert all(before[name] != after[name] for name in keys)


def test_old_wrapped_keys_are_worthless_after_rotation(
    root: Path, store: FileKeyStore, tmp_path: Path
) -> None:
    store.create("one")
    copy = tmp_path / "copy"
    shutil.copytree(root / "wrapped", copy)
    store.destroy("one")
    store.rotate()

    shutil.copy(copy / "one", root / "wrapped" / "one")

    with pytest.raises(KeyStoreError, match="cannot be unwrapped"):
        store.get("one")
    (root / "periods" / "2").rename(root / "periods" / "1")  # nor does the new key open them
    with pytest.raises(KeyStoreError, match="cannot be unwrapped"):
        store.get("one")


def test_a_wrapped_key_is_not_accepted_for_another_blob(root: Path, store: FileKeyStore) -> None:
    store.create("one")
    store.create("two")
    shutil.copy(root / "wrapped" / "one", root / "wrapped" / "two")
    with pytest.raises(KeyStoreError):
        store.get("two")


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("moment", range(1, 12))
def test_a_rotation_cut_off_anywhere_loses_no_key_and_is_finished(
    root: Path,
    store: FileKeyStore,
    monkeypatch: pytest.MonkeyPatch,
    moment: int,
    opened: Callable[..., FileKeyStore],
) -> None:
    keys = {name: store.create(name) for name in ("one", "two", "three")}
    calls = 0

    def dying(step: Callable[..., None]) -> Callable[..., None]:
        def wrapper(*arguments: object) -> None:
            nonlocal calls
            calls += 1
            if calls == moment:
                raise Killed
            step(*arguments)

        return wrapper

    for module, name in ((file_keys, "write_durably"), (os, "fsync"), (Path, "unlink")):
        monkeypatch.setattr(module, name, dying(getattr(module, name)))
    with pytest.raises(Killed):
        store.rotate()
    monkeypatch.undo()

    again = opened()
    assert {name: again.get(name) for name in keys} == keys
    created = again.create("four")
    if again.is_rotation_due(DAY_S):
        again.rotate()
    assert not again.is_rotation_due(DAY_S)
    assert sum(path.name.isdigit() for path in (root / "periods").iterdir()) == 1
    again.rotate()
    assert len(list((root / "periods").iterdir())) == 1
    assert {name: again.get(name) for name in keys} == keys
    assert again.get("four") == created


def test_a_destruction_cut_off_is_finished_by_the_next(
    root: Path, store: FileKeyStore, tmp_path: Path
) -> None:
    store.create("one")
    (root / "wrapped" / "one").rename(root / "wrapped" / "one.doomed")
    os.link(root / "wrapped" / "one.doomed", tmp_path / "same")
    with pytest.raises(GoneError):
        store.get("one")
    store.destroy("one")
    assert (tmp_path / "same").read_bytes() == bytes(64)
    assert list(store.blob_ids()) == []


def test_a_period_is_over_when_its_time_is_or_the_clock_was_set_back(
    root: Path, opened: Callable[..., FileKeyStore]
) -> None:
    now = 1_800_000_000.0
    store = opened(create=True, clock=lambda: now)
    assert not store.is_rotation_due(DAY_S)
    now += DAY_S - 1
    assert not store.is_rotation_due(DAY_S)
    now += 1
    assert store.is_rotation_due(DAY_S)
    store.rotate()
    assert not store.is_rotation_due(DAY_S)
    now -= DAY_S
    assert store.is_rotation_due(DAY_S)


def test_reading_creating_and_destroying_go_on_while_keys_rotate(
    root: Path, store: FileKeyStore, opened: Callable[..., FileKeyStore]
) -> None:
    lasting = {f"lasting-{number}": store.create(f"lasting-{number}") for number in range(5)}
    faults: list[object] = []
    stop = threading.Event()

    def use(me: int) -> None:
        mine = opened()
        try:
            while not stop.wait(0.002):  # one that never pauses keeps others from the lock
                created = mine.create(f"mine-{me}")
                if mine.get(f"mine-{me}") != created:
                    faults.append("another key")
                faults.extend(name for name, key in lasting.items() if mine.get(name) != key)
                mine.destroy(f"mine-{me}")
                if mine.holds(f"mine-{me}"):
                    faults.append("resurrected")
        except ExpungeError as error:
            faults.append(error)

    users = [threading.Thread(target=use, args=[number]) for number in range(3)]
    rotators = [threading.Thread(target=lambda: [store.rotate() for _ in range(2)]) for _ in "12"]
    for thread in users + rotators:
        thread.start()
    for thread in rotators:
        thread.join()
    stop.set()
    for thread in users:
        thread.join()
    assert faults == []
    assert sorted(store.blob_ids()) == sorted(lasting)
    assert len(list((root / "periods").iterdir())) == 1

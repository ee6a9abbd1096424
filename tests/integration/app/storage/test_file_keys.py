"""Keys of periods that a service wraps: what binds them, what is remembered, what is refused."""

import logging
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.domain.errors import GoneError, KeyServiceError, KeyStoreError
from app.runtime import logs
from app.storage.file_keys import KEEP_S, Context, FileKeyStore, InDirectory, InService, Succession
from tests.support.key_keepers import Keeper, Kms, Vault, running, wrapping_of
from tests.support.vault import RefusedError

DAY_S = 86400.0
Service = Kms | Vault


@pytest.fixture(params=[pytest.param(Kms, marks=pytest.mark.slow), Vault])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """A service of this test's own, which it may stop and change."""
    with running(request.param) as service:
        yield service


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def store(root: Path, service: Service) -> FileKeyStore:
    return FileKeyStore(root, wrapping=wrapping_of(service), create=True)


def _opened(root: Path, keeper: Keeper) -> FileKeyStore:
    """Open the store as another process does, which remembers nothing."""
    return FileKeyStore(root, wrapping=wrapping_of(keeper))


def _another_key(service: Service) -> None:
    """Have the settings name another key of the same service."""
    if isinstance(service, Kms):
        service.variables = {**service.variables, "KMS_KEY": service.new_key()}
    else:
        service.server.keys["transit", "other"] = type(service.key)()
        service.variables = {**service.variables, "VAULT_KEY": "other"}


def test_another_key_of_the_service_opens_nothing_and_destroys_nothing(
    root: Path, store: FileKeyStore, service: Service
) -> None:
    key, named = store.create("one"), service.variables
    _another_key(service)
    with pytest.raises((KeyStoreError, KeyServiceError)):
        _opened(root, service).get("one")
    with pytest.raises((KeyStoreError, KeyServiceError)):
        _opened(root, service).create("two")
    with pytest.raises((KeyStoreError, KeyServiceError)):
        _opened(root, service).rotate()
    service.variables = named
    assert _opened(root, service).get("one") == key


def test_wrapped_keys_of_two_periods_cannot_change_places(
    root: Path, store: FileKeyStore, service: Service, tmp_path: Path
) -> None:
    store.create("one")
    shutil.copy(root / "periods" / "1", tmp_path / "first")
    store.rotate()
    shutil.copy(tmp_path / "first", root / "periods" / "2")
    with pytest.raises(KeyStoreError, match="cannot be unwrapped"):
        store.get("one")  # although this process remembers both
    with pytest.raises(KeyStoreError, match="cannot be unwrapped"):
        _opened(root, service).get("one")
    with pytest.raises(KeyStoreError):
        _opened(root, service).create("two")


def test_a_wrapped_key_of_another_store_is_refused(
    root: Path, store: FileKeyStore, service: Service, tmp_path: Path
) -> None:
    """Both are wrapped by the same key of the same service, for the same period."""
    store.create("one")
    FileKeyStore(tmp_path / "other", wrapping=wrapping_of(service), create=True)
    shutil.copy(tmp_path / "other" / "periods" / "1", root / "periods" / "1")
    with pytest.raises(KeyStoreError):
        store.create("two")
    with pytest.raises(KeyStoreError, match="cannot be unwrapped"):
        _opened(root, service).get("one")


class Careless:
    """A service that ignores the context."""

    name = "careless"

    def encrypt(self, content: bytes, context: Context) -> bytes:
        return content[::-1]

    def decrypt(self, ciphertext: bytes, context: Context) -> bytes:
        return ciphertext[::-1]


def test_the_context_binds_where_a_service_ignores_it() -> None:
    wrapping = InService(Careless())
    wrapped = wrapping.wrap(bytes(32), {"store": "a", "period": "1"})
    assert wrapping.unwrap(wrapped, {"period": "1", "store": "a"}) == bytes(32)
    for other in ({"store": "b", "period": "1"}, {"store": "a", "period": "2"}):
        with pytest.raises(KeyStoreError, match="another store or period"):
            wrapping.unwrap(wrapped, other)


def test_a_key_that_nothing_wraps_is_not_taken_in_place_of_a_wrapped_one(
    root: Path, store: FileKeyStore, service: Service
) -> None:
    """Else whoever can write the directory would know the keys of what is stored next."""
    store.create("one")
    (root / "periods" / "1").write_bytes(bytes(32))
    with pytest.raises(KeyStoreError, match="was not wrapped by"):
        store.create("two")
    with pytest.raises(KeyStoreError):
        _opened(root, service).rotate()


def test_without_the_settings_of_the_service_the_store_says_so(
    root: Path, store: FileKeyStore
) -> None:
    store.create("one")
    with pytest.raises(KeyStoreError, match="wrapped by a service that no setting names"):
        FileKeyStore(root).get("one")


def test_a_rotated_key_of_the_service_goes_on_working(
    root: Path, store: FileKeyStore, service: Service
) -> None:
    one = store.create("one")
    if isinstance(service, Kms):
        service.client().rotate_key_on_demand(KeyId=service.variables["KMS_KEY"])
    else:
        service.key.rotate()
    two = _opened(root, service).create("two")
    _opened(root, service).rotate()
    again = _opened(root, service)
    assert (again.get("one"), again.get("two")) == (one, two)


def test_versions_of_a_vaults_key_that_were_closed_make_old_copies_of_everything_worthless(
    root: Path, tmp_path: Path
) -> None:
    """What docs/blobs.md advises. Without it, such a copy opens for ever."""
    vault = Vault()
    store = FileKeyStore(root, wrapping=wrapping_of(vault), create=True)
    kept, gone = store.create("kept"), store.create("gone")
    shutil.copytree(root, tmp_path / "copy")
    store.destroy("gone")
    assert _opened(tmp_path / "copy", vault).get("gone") == gone

    vault.key.rotate()
    store.rotate()
    vault.key.close(2)
    vault.key.trim(2)
    with pytest.raises(RefusedError):
        vault.key.close(1)
    with pytest.raises(KeyServiceError, match="too old"):
        _opened(tmp_path / "copy", vault).get("gone")
    assert _opened(root, vault).get("kept") == kept
    vault.stop()


def test_after_a_change_of_key_the_old_one_opens_only_copies_and_the_new_one_only_the_store(
    root: Path, store: FileKeyStore, service: Service, tmp_path: Path
) -> None:
    """So whoever deletes the old one in the service makes the copies worthless."""
    kept, old = store.create("kept"), service.variables
    shutil.copytree(root, tmp_path / "copy")
    before = wrapping_of(service)
    _another_key(service)

    FileKeyStore(root, wrapping=Succession(wrapping_of(service), before)).rotate()

    assert _opened(root, service).get("kept") == kept
    with pytest.raises((KeyServiceError, KeyStoreError)):
        _opened(tmp_path / "copy", service).get("kept")
    service.variables = old
    assert _opened(tmp_path / "copy", service).get("kept") == kept
    with pytest.raises((KeyServiceError, KeyStoreError)):
        _opened(root, service).get("kept")


def test_what_a_service_wraps_can_succeed_what_the_directory_held_and_the_other_way_round(
    root: Path, service: Service
) -> None:
    key = FileKeyStore(root, create=True).create("one")
    within, bare = wrapping_of(service), InDirectory()
    FileKeyStore(root, wrapping=Succession(within, bare)).rotate()
    assert _opened(root, service).get("one") == key
    with pytest.raises(KeyStoreError):
        FileKeyStore(root).get("one")
    FileKeyStore(root, wrapping=Succession(bare, within)).rotate()
    assert FileKeyStore(root).get("one") == key


class Killed(BaseException):
    """The process dies here."""


def test_a_process_that_dies_between_wrapping_and_storing_leaves_what_was(
    root: Path, store: FileKeyStore, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = store.create("one")

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("app.storage.file_keys.write_durably", die)
    with pytest.raises(Killed):
        store.rotate()
    monkeypatch.undo()
    again = _opened(root, service)
    assert again.get("one") == key
    assert not again.is_rotation_due(DAY_S)
    assert again.rotate() == 1
    assert [path.name for path in (root / "periods").iterdir()] == ["2"]


def test_while_the_service_is_away_keys_are_destroyed_and_what_is_remembered_still_serves(
    root: Path, service: Service
) -> None:
    now = 0.0
    wrapping = wrapping_of(service)
    wrapping._clock = lambda: now
    store = FileKeyStore(root, wrapping=wrapping, create=True)
    one = store.create("one")
    store.create("two")
    service.stop()

    other = _opened(root, service)
    with pytest.raises(KeyServiceError, match="does not answer"):
        other.get("one")
    with pytest.raises(KeyServiceError):
        other.require_usable()
    other.destroy("two")
    with pytest.raises(GoneError):
        other.get("two")
    with pytest.raises(GoneError):
        store.get("two")
    assert store.get("one") == one
    with pytest.raises(KeyServiceError):
        store.rotate()
    assert [path.name for path in (root / "periods").iterdir()] == ["1"]

    now = KEEP_S - 1
    assert store.get("one") == one
    now = KEEP_S + 1
    with pytest.raises(KeyServiceError):
        store.get("one")
    assert not wrapping._kept
    service.start()
    assert store.get("one") == one
    assert other.get("one") == one


def test_rotations_that_fail_do_not_leave_a_period_each(
    root: Path, store: FileKeyStore, service: Service
) -> None:
    """As when the old key cannot be used any more: the dispatcher tries every second."""
    store.create("one")
    _another_key(service)
    with pytest.raises((KeyServiceError, KeyStoreError)):
        _opened(root, service).rotate()
    for _ in range(3):
        with pytest.raises((KeyServiceError, KeyStoreError)):
            _opened(root, service).rotate()
    assert sorted(path.name for path in (root / "periods").iterdir()) == ["1", "2"]


def test_an_ended_period_is_forgotten_with_its_file(
    root: Path, store: FileKeyStore, tmp_path: Path
) -> None:
    """Its key may still be in memory: the store does not use it."""
    store.create("one")
    shutil.copy(root / "wrapped" / "one", tmp_path / "one")
    store.destroy("one")
    store.rotate()
    shutil.copy(tmp_path / "one", root / "wrapped" / "one")
    with pytest.raises(KeyStoreError, match="cannot be unwrapped"):
        store.get("one")


def test_neither_keys_nor_ciphertexts_are_logged_or_told(
    root: Path, store: FileKeyStore, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in logs._QUIET:  # as programs are started
        caplog.set_level(logging.WARNING, logger=name)
    store.create("one")
    _opened(root, service).rotate()
    _another_key(service)
    with pytest.raises((KeyServiceError, KeyStoreError)) as refused:
        _opened(root, service).get("one")
    wrapped = (root / "periods" / "2").read_bytes()
    secrets = [_spelled(wrapped.partition(b":")[2]), _spelled(store._kek(2))]
    told = caplog.text + str(refused.value)
    assert not [spelling for spellings in secrets for spelling in spellings if spelling in told]


def _spelled(content: bytes) -> list[str]:
    return [content.hex(), b64encode(content[:30]).decode(), repr(content)[2:-1][:40]]

"""What an old copy of the data directory is worth once a version has been retired.

The copies are opened by the product's own code, with everything that an intruder would have: the
copied files, the present files and the present database, where even the version's row is put back.
The limits are those of docs/blobs.md, and are tested too.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import update

from app.domain.errors import GoneError, KeyStoreError
from app.ledger import withdrawal
from app.registry.tables import ModelRow, VersionRow
from app.runtime.locations import key_store_dir
from app.runtime.settings import Settings
from app.services import Services, open_services
from app.storage.stores import key_store
from app.storage.tables import BlobRow
from tests.support.key_keepers import EVERY
from tests.support.stored import live
from tests.support.workshop import Workshop

pytestmark = pytest.mark.parametrize("keeper", EVERY, indirect=True)

CONTENT = b"weights of a version that will be retired" * 1000


@dataclass
class Retired:
    """A version's life, and copies from before its end."""

    blob_id: str
    data_copy: Path
    keys_copy: Path
    live_blob_id: str


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    """The documented set-up: keys outside the data directory."""
    apart = settings.model_copy(update={"key_store_dir": tmp_path / "key-store"})
    key_store(apart, create=True)
    shutil.rmtree(settings.data_dir / "keys" / "blobs")
    return apart


@pytest.fixture
def retired(workshop: Workshop, services: Services, settings: Settings, tmp_path: Path) -> Retired:
    workshop.define()
    held = workshop.begun()
    version = workshop.publish(held, workshop.result(held, CONTENT))
    other = live(services.blobs, "weights", b"another version lives on")
    shutil.copytree(settings.data_dir, tmp_path / "data-copy")
    shutil.copytree(key_store_dir(settings), tmp_path / "keys-copy")
    with services.database.transaction() as session:
        row = session.get_one(VersionRow, version.id)
        withdrawal.retire(session, session.get_one(ModelRow, row.model_id), row, reason="replaced")
    services.clean_up()
    return Retired(version.blob_id, tmp_path / "data-copy", tmp_path / "keys-copy", other.id)


def _read(settings: Settings, blob_id: str) -> bytes:
    """Read a blob with the product's code, after telling the database that it lives."""
    services = open_services(settings)
    with services.database.transaction() as session:
        session.execute(
            update(BlobRow)
            .where(BlobRow.id == blob_id)
            .values(
                state="live",
                size_bytes=len(CONTENT),
                shredded_at=None,
                object_deleted_at=None,
            )
        )
    try:
        return services.blobs.read(blob_id)
    finally:
        services.database.dispose()


def test_a_copied_data_directory_and_the_present_keys_do_not_open_a_retired_version(
    retired: Retired, settings: Settings
) -> None:
    copied = settings.model_copy(update={"data_dir": retired.data_copy})
    assert (retired.data_copy / "blobs" / retired.blob_id).stat().st_size > len(CONTENT)
    every_byte = b"".join(
        path.read_bytes() for path in retired.data_copy.rglob("*") if path.is_file()
    )
    assert CONTENT[:41] not in every_byte
    with pytest.raises(GoneError, match="key of the stored object was destroyed"):
        _read(copied, retired.blob_id)


def test_nor_do_wrapped_keys_from_before_once_their_period_is_over(
    retired: Retired, services: Services, settings: Settings
) -> None:
    """A copy of the wrapped keys, and the present key that wraps: nothing fits."""
    (period,) = (key_store_dir(settings) / "periods").iterdir()
    os.utime(period, (0, 0))
    services.rotate_keys()
    shutil.copytree(
        retired.keys_copy / "wrapped", key_store_dir(settings) / "wrapped", dirs_exist_ok=True
    )
    copied = settings.model_copy(update={"data_dir": retired.data_copy})
    with pytest.raises(KeyStoreError, match="cannot be unwrapped"):
        _read(copied, retired.blob_id)


def test_the_limit_within_a_period_copied_wrapped_keys_still_open(
    retired: Retired, settings: Settings
) -> None:
    shutil.copytree(
        retired.keys_copy / "wrapped", key_store_dir(settings) / "wrapped", dirs_exist_ok=True
    )
    copied = settings.model_copy(update={"data_dir": retired.data_copy})
    assert _read(copied, retired.blob_id) == CONTENT


def test_the_limit_a_copy_of_everything_with_its_periods_key_opens_for_ever(
    retired: Retired, services: Services, settings: Settings
) -> None:
    services.blobs.rotate_keys(period_s=1e-9)
    copied = settings.model_copy(
        update={"data_dir": retired.data_copy, "key_store_dir": retired.keys_copy}
    )
    assert _read(copied, retired.blob_id) == CONTENT


def test_rotation_leaves_what_lives_readable(
    retired: Retired, services: Services, settings: Settings
) -> None:
    assert services.blobs.rotate_keys(period_s=1e-9) is not None
    assert services.blobs.read(retired.live_blob_id) == b"another version lives on"

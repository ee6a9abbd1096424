"""A data directory from before objects were encrypted goes on, and no plain byte stays."""

import hashlib
import os
from pathlib import Path

import pytest

from app.domain.errors import CorruptObjectError
from app.services import Services
from app.storage import upgrade
from app.storage.tables import BlobRow
from app.storage.upgrade import encrypt_plain_files

CONTENT = b"rows of records, as they are " * 100


@pytest.fixture
def root(services: Services) -> Path:
    return services.settings.data_dir / "blobs"


def _plain(services: Services, root: Path) -> str:
    """Store an object as it was done before."""
    blob_id = services.blobs.reserve("shard")
    (root / blob_id).write_bytes(CONTENT)
    with services.database.transaction() as session:
        row = session.get_one(BlobRow, blob_id)
        row.state, row.size_bytes = "live", len(CONTENT)
        row.sha256 = hashlib.sha256(CONTENT).hexdigest()
    return blob_id


def test_plain_objects_are_encrypted_once_and_overwritten(
    services: Services, root: Path, tmp_path: Path
) -> None:
    plain = [_plain(services, root) for _ in range(2)]
    young = services.blobs.put("shard", b"encrypted already")
    with services.database.transaction() as session:
        services.blobs.adopt(session, young.id)
    os.link(root / plain[0], tmp_path / "same-inode")
    with pytest.raises(CorruptObjectError):
        services.blobs.read(plain[0])

    assert encrypt_plain_files(services.database, services.blobs, root) == 2

    assert [services.blobs.read(blob_id) for blob_id in plain] == [CONTENT, CONTENT]
    assert services.blobs.read(young.id) == b"encrypted already"
    assert (tmp_path / "same-inode").read_bytes() == bytes(len(CONTENT))
    assert sorted(path.name for path in root.iterdir()) == sorted([*plain, young.id])
    assert encrypt_plain_files(services.database, services.blobs, root) == 0


@pytest.mark.parametrize("step", ["link", "fill", "erase"])
def test_what_is_cut_off_is_finished_by_the_next(
    services: Services, root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    blob_id = _plain(services, root)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    owner = {"link": os, "fill": services.blobs, "erase": upgrade}[step]
    monkeypatch.setattr(owner, step, killed)
    with pytest.raises(KeyboardInterrupt):
        encrypt_plain_files(services.database, services.blobs, root)
    monkeypatch.undo()

    encrypt_plain_files(services.database, services.blobs, root)

    assert services.blobs.read(blob_id) == CONTENT
    assert [path.name for path in root.iterdir()] == [blob_id]


def test_a_file_that_is_not_what_was_stored_is_left_alone(services: Services, root: Path) -> None:
    blob_id = _plain(services, root)
    (root / blob_id).write_bytes(b"x" * len(CONTENT))
    assert encrypt_plain_files(services.database, services.blobs, root) == 0

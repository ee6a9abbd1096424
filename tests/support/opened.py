"""Stored objects as somebody reads them who has all files, the database and all keys."""

from pathlib import Path

from sqlalchemy import select

from app.domain import provenance
from app.domain.states import VersionState
from app.registry.tables import VersionRow
from app.runtime.database import Database
from app.storage.encryption import HEADER_BYTES, Chunks, Identity, content_size
from app.storage.file_keys import FileKeyStore
from app.storage.tables import BlobRow


def opened_objects(directory: Path, keys: FileKeyStore, database: Database) -> dict[str, bytes]:
    """Return the content of every object in ``directory`` that a key is left for, by its name."""
    with database.transaction() as session:
        kinds = {row.id: row.kind for row in session.scalars(select(BlobRow))}
    contents = {}
    for blob_id in keys.blob_ids():
        try:
            stored = (directory / blob_id).read_bytes()
        except FileNotFoundError:
            continue
        contents[blob_id] = _opened(stored, keys, Identity(blob_id, kinds[blob_id]))
    return contents | opened_beside(keys, database)


def opened_beside(
    keys: FileKeyStore, database: Database, *states: VersionState
) -> dict[str, bytes]:
    """Return what versions keep under the keys of their weights that are left, by version."""
    with database.transaction() as session:
        kept = select(VersionRow).where(VersionRow.provenance.is_not(None))
        rows = session.scalars(kept.where(VersionRow.state.in_(states or VersionState))).all()
    return {
        row.id: _opened(row.provenance or b"", keys, Identity(row.blob_id, provenance.KIND))
        for row in rows
        if keys.holds(row.blob_id)
    }


def _opened(stored: bytes, keys: FileKeyStore, identity: Identity) -> bytes:
    size = content_size(len(stored))
    assert size is not None
    chunks = Chunks(stored[:HEADER_BYTES], keys.get(identity.blob_id), identity, size)
    parts = (stored[slice(*chunks.place(index))] for index in range(chunks.count))
    return b"".join(chunks.decrypt(index, part) for index, part in enumerate(parts))

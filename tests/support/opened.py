"""Stored objects as somebody reads them who has all files, the database and all keys."""

from pathlib import Path

from sqlalchemy import select

from app.runtime.database import Database
from app.storage.encryption import CHUNK_BYTES, HEADER_BYTES, TAG_BYTES, Chunks, Identity
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
        size = len(stored) - HEADER_BYTES - TAG_BYTES
        assert size <= CHUNK_BYTES, "longer objects have more tags"
        identity = Identity(blob_id, kinds[blob_id])
        opened = Chunks(stored[:HEADER_BYTES], keys.get(blob_id), identity, size)
        contents[blob_id] = opened.decrypt(0, stored[HEADER_BYTES:])
    return contents

"""Objects from before objects were encrypted."""

import hashlib
import os
from pathlib import Path

from sqlalchemy import select

from app.database import Database
from app.domain.states import BlobState
from app.storage.blobs import Blobs
from app.storage.files import erase
from app.storage.tables import BlobRow


def encrypt_plain_files(database: Database, blobs: Blobs, root: Path) -> int:
    """Encrypt the live objects of a local store that are not; return how many there were.

    An object is plain if its file is just what the database says of its content. The plain file is
    overwritten after the encrypted one is in its place. What is cut off is finished by the next.
    """
    query = select(BlobRow).where(BlobRow.state == BlobState.LIVE, BlobRow.size_bytes.is_not(None))
    with database.transaction() as session:
        rows = session.scalars(query).all()
    plain = [row for row in rows if _is_plain(root / row.id, row)]
    for row in plain:
        path = root / row.id
        kept = path.with_suffix(".plain")
        kept.unlink(missing_ok=True)
        os.link(path, kept)
        blobs.fill(row.id, path.read_bytes())
        erase(kept)
    for left in root.glob("*.plain"):
        erase(left)
    return len(plain)


def _is_plain(path: Path, row: BlobRow) -> bool:
    if not path.exists() or path.stat().st_size != row.size_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == row.sha256

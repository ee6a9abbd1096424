"""Blobs as writers leave them behind."""

from app.storage.blobs import Blobs, StoredBlob, adopt


def pending(blobs: Blobs, kind: str, content: bytes) -> StoredBlob:
    """Write a blob in a transaction that ends without adopting it: the next sweep gives it up."""
    with blobs._database.transaction() as session:
        return blobs.put(session, kind, content)


def live(blobs: Blobs, kind: str, content: bytes) -> StoredBlob:
    """Write a blob that its transaction adopts."""
    with blobs._database.transaction() as session:
        blob = blobs.put(session, kind, content)
        adopt(session, blob.id)
        return blob

"""Digests of sets of records, which stand in the log for record numbers: it must not show those.

Each is named as ``app/operations/fsck.py`` names it, which has PostgreSQL compute it again.
"""

import hashlib
from collections.abc import Iterable

from app.registry.datasets.repository import KeyedRecord

_NO_SUBJECT = bytes(32)
"""Replaces a missing subject's pseudonym, so that all records have the same length."""
_SEQ_BYTES = 8


def named(
    request_id: str, records: Iterable[tuple[KeyedRecord, bytes]], *, salt: bytes | None
) -> dict[str, str | None]:
    """Digest a request's records: numbers, pseudonyms and salted commitments, by number.

    Nobody can test a pseudonym on it without the request's ``salt``. Once that is destroyed, they
    have another digest, without pseudonyms.
    """
    digest = hashlib.sha256(salt or b"")
    for record, commitment in sorted(records, key=lambda pair: pair[0].seq):
        digest.update(_spelt(record.seq) + commitment)
        if salt is not None:
            digest.update((record.record_key or b"") + (record.subject_key or _NO_SUBJECT))
    return {f"forget_request_records/{request_id}": digest.hexdigest()}


def marked(dataset_id: str, epoch: int, seqs: Iterable[int]) -> dict[str, str | None]:
    """Digest the numbers of the records that are forgotten since an epoch; None without any."""
    spelt = b"".join(map(_spelt, sorted(seqs)))
    return {f"records/{dataset_id}/{epoch}": hashlib.sha256(spelt).hexdigest() if spelt else None}


def _spelt(seq: int) -> bytes:
    return seq.to_bytes(_SEQ_BYTES)

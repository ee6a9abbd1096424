"""Checks a certificate's place in the transparency log, and that log's past.

The log that holds the certificate must be signed by a key that is in use now. The entry says when
the certificate was recorded; the key that signed the certificate must have been valid then.
"""

import hashlib
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Final

from app.domain import merkle, strict_json
from app.domain.errors import NoteError, ProofError, VerificationError
from app.evidence.certificates.bundle import LogProof
from app.evidence.certificates.checkpoint import Checkpoint, open_checkpoint, origin_of
from app.evidence.certificates.note import NoteKey
from app.evidence.certificates.schema import Predicate
from app.evidence.certificates.trusted_keys import TrustedKey, TrustedKeys

_ISSUED: Final = "certificate.issued"
_CLOCK_SKEW: Final = timedelta(minutes=1)


def check_log(
    proof: LogProof,
    payload: bytes,
    predicate: Predicate,
    *,
    trusted: TrustedKeys,
    signer: TrustedKey,
    now: datetime,
) -> Checkpoint:
    """Check that a log signed by a key in use recorded the certificate while its key was valid."""
    recorded_at = _check_entry(proof.entry, payload, predicate)
    checkpoint = _open_in_use(proof.checkpoint.encode(), trusted, now)
    try:
        merkle.verify_inclusion(
            leaf=merkle.leaf_hash(proof.entry.encode()),
            index=proof.index,
            size=checkpoint.size,
            proof=proof.inclusion,
            root=checkpoint.root,
        )
    except ProofError as error:
        raise VerificationError("log", str(error)) from error
    if not signer.vouches_for(recorded_at, now=now):
        raise VerificationError(
            "log", "its key was not valid when it was recorded: download the bundle again"
        )
    return checkpoint


def check_history(
    proof: LogProof, checkpoint: Checkpoint, older: bytes, trusted: TrustedKeys
) -> str:
    """Check that the log extends an older checkpoint; return this in words.

    The user kept the older checkpoint and knows its age, so any key of the log may have signed it.
    """
    old = _open("history", older, trusted.origin, trusted.note_keys())
    if old.size > checkpoint.size:
        raise VerificationError(
            "history", "the checkpoint is newer than the bundle: download the bundle again"
        )
    if old.size < checkpoint.size and proof.old_size != old.size:
        raise VerificationError(
            "history", f"the bundle has no proof from {old.size} entries on: download one that has"
        )
    try:
        merkle.verify_consistency(
            old_size=old.size,
            old_root=old.root,
            new_size=checkpoint.size,
            new_root=checkpoint.root,
            proof=proof.consistency if proof.old_size == old.size else (),
        )
    except ProofError as error:
        raise VerificationError("history", str(error)) from error
    return f"the log of {checkpoint.size} entries begins with the {old.size} known before"


def _check_entry(text: str, payload: bytes, predicate: Predicate) -> datetime:
    """Check an entry's content; return when it was recorded."""
    try:
        entry: dict[str, Any] = strict_json.loads(text)
        stated = (entry["kind"], entry["sha256"], entry["basis"])
        recorded_at = datetime.fromisoformat(entry["recorded_at"])
        certified_at = datetime.fromisoformat(predicate.times.certified_at)
        too_late = certified_at > recorded_at + _CLOCK_SKEW
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise VerificationError("log", "not an entry of the log about a certificate") from error
    if stated != (_ISSUED, hashlib.sha256(payload).hexdigest(), predicate.basis):
        raise VerificationError("log", "the entry is about something else")
    if too_late:
        raise VerificationError("log", "certified after it was recorded in the log")

    return recorded_at


def _open_in_use(note: bytes, trusted: TrustedKeys, now: datetime) -> Checkpoint:
    _open("log", note, trusted.origin, trusted.note_keys())
    try:
        return open_checkpoint(note, trusted.note_keys(in_use_at=now))
    except NoteError as error:
        raise VerificationError(
            "log",
            "its checkpoint is signed by a retired key: download the bundle again",
        ) from error


def _open(step: str, note: bytes, origin: str, keys: Collection[NoteKey]) -> Checkpoint:
    if origin_of(note) != origin:
        raise VerificationError(step, "the checkpoint is of another log than the keys")
    try:
        return open_checkpoint(note, keys)
    except NoteError as error:
        raise VerificationError(step, str(error)) from error

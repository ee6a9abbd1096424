"""A certificate's place in the transparency log, and that log's past."""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from app.certificates import strict_json
from app.certificates.bundle import LogProof
from app.certificates.checkpoint import Checkpoint, open_checkpoint, origin_of
from app.certificates.note import NoteKey
from app.certificates.schema import Predicate
from app.certificates.trusted_keys import TrustedKey
from app.domain import merkle
from app.domain.errors import NoteError, ProofError, VerificationError

_ISSUED: Final = "certificate.issued"
_CLOCK_SKEW: Final = timedelta(minutes=1)


def check_log(
    proof: LogProof, payload: bytes, predicate: Predicate, trusted: Sequence[TrustedKey]
) -> Checkpoint:
    """Check that the log that a trusted key signed holds the certificate's entry.

    Raises:
        VerificationError: it does not, or the entry says something else than the certificate.
    """
    _check_entry(proof.entry, payload, predicate)
    checkpoint = _open("log", proof.checkpoint.encode(), trusted)
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
    return checkpoint


def check_history(
    proof: LogProof, checkpoint: Checkpoint, older: bytes, trusted: Sequence[TrustedKey]
) -> str:
    """Check that the log begins with the one that an older checkpoint is of; say so.

    Raises:
        VerificationError: it does not, or the bundle does not prove it.
    """
    old = _open("history", older, trusted)
    if old.origin != checkpoint.origin:
        raise VerificationError("history", "the checkpoint is of another log")
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


def _check_entry(text: str, payload: bytes, predicate: Predicate) -> None:
    try:
        entry: dict[str, Any] = strict_json.loads(text)
        told = (entry["kind"], entry["sha256"], entry["basis"])
        recorded_at = datetime.fromisoformat(entry["recorded_at"])
        certified_at = datetime.fromisoformat(predicate.times.certified_at)
        too_late = certified_at > recorded_at + _CLOCK_SKEW
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise VerificationError("log", "not an entry of the log about a certificate") from error
    if told != (_ISSUED, hashlib.sha256(payload).hexdigest(), predicate.basis):
        raise VerificationError("log", "the entry is about something else")
    if too_late:
        raise VerificationError("log", "certified after it was recorded in the log")


def _open(step: str, note: bytes, trusted: Sequence[TrustedKey]) -> Checkpoint:
    try:
        return open_checkpoint(note, [NoteKey(origin_of(note), key.public_key) for key in trusted])
    except NoteError as error:
        raise VerificationError(step, str(error)) from error

"""Offline verification: nothing is needed but the bundle, the weights and trusted keys.

The plan, each step of which is named where it runs:

1. bundle     the file is a bundle of bounded size and depth, with one envelope
2. signature  a trusted Ed25519 key signed the payload; nothing in it is parsed before
3. statement  the payload is an in-toto statement of the known predicate type
4. digest     the weight file is the subject
5. guarantee  recomputed from the parameters, it is no weaker than stated, and meets the target
6. log        the certificate's entry is in the transparency log that a trusted key signed
7. history    that log begins with the one of an older checkpoint (if one is given)
8. receipt    the records of one forget request are among those accounted for (if one is given)

The algorithms are fixed here; they are never read from the document.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from securesystemslib.dsse import Envelope

from app.certificates.bundle import LogProof, read_bundle
from app.certificates.checkpoint import Checkpoint, open_checkpoint, origin_of
from app.certificates.guarantee_check import check_guarantee
from app.certificates.note import NoteKey
from app.certificates.receipts import Receipt, check_receipt
from app.certificates.signing import PAYLOAD_TYPE
from app.certificates.statement import PREDICATE_TYPE, STATEMENT_TYPE
from app.certificates.trusted_keys import TrustedKey, read_keys
from app.domain import merkle
from app.domain.errors import NoteError, ProofError, VerificationError
from app.domain.states import Basis

_ISSUED: Final = "certificate.issued"


@dataclass(frozen=True)
class VerifiedStep:
    """One step that passed, and what it established."""

    name: str
    finding: str


def verify(
    *,
    bundle: bytes,
    weights: Path,
    keys: bytes,
    consistent_with: bytes | None = None,
    receipt: bytes | None = None,
    report: Callable[[VerifiedStep], None] = lambda _: None,
) -> dict[str, Any]:
    """Check a certificate and return its predicate.

    Args:
        bundle: the bundle's content.
        weights: the safetensors file that it should speak about.
        keys: trusted Ed25519 public keys: PEM, or a list as the service publishes it.
        consistent_with: an older checkpoint of the same log.
        receipt: of a forget request that the certificate should cover.
        report: told of each step that passed.

    Raises:
        VerificationError: naming the first step that failed.
    """
    trusted = read_keys(keys)
    parts = read_bundle(bundle)
    report(VerifiedStep("bundle", "one signed envelope and its place in the log"))
    signer = _check_signature(parts.envelope, trusted)
    report(VerifiedStep("signature", "made by a given key"))
    statement = _statement(parts.envelope.payload)
    predicate = statement["predicate"]
    _check_validity(predicate, signer)
    report(VerifiedStep("statement", f"a certificate of basis {predicate['basis']}"))
    _check_digest(statement, weights)
    report(VerifiedStep("digest", "the weights are the certificate's subject"))
    report(VerifiedStep("guarantee", check_guarantee(predicate)))
    checkpoint = _check_log(parts.log, parts.envelope.payload, trusted)
    report(VerifiedStep("log", f"entry {parts.log.index} of {checkpoint.size}"))
    if consistent_with is not None:
        finding = _check_history(parts.log, checkpoint, consistent_with, trusted)
        report(VerifiedStep("history", finding))
    if receipt is not None:
        finding = check_receipt(Receipt.from_json(receipt), parts.request, **_roots(predicate))
        report(VerifiedStep("receipt", finding))
    return dict(predicate)


def _check_signature(envelope: Envelope, trusted: Sequence[TrustedKey]) -> TrustedKey:
    if envelope.payload_type != PAYLOAD_TYPE:
        raise VerificationError("signature", "the payload is of another type")
    ((key_id, signature),) = envelope.signatures.items()
    for key in trusted:
        if key.id == key_id:
            try:
                key.public_key.verify(bytes.fromhex(signature.signature), envelope.pae())
            except (InvalidSignature, ValueError) as error:
                raise VerificationError("signature", "it does not match") from error
            return key
    raise VerificationError("signature", "made by a key that was not given")


def _statement(payload: bytes) -> dict[str, Any]:
    try:
        statement = json.loads(payload)
        predicate = statement["predicate"]
        known = (
            statement["_type"] == STATEMENT_TYPE and statement["predicateType"] == PREDICATE_TYPE
        )
        Basis(predicate["basis"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise VerificationError("statement", "not a certificate") from error
    if not known:
        raise VerificationError("statement", "of a type that this version does not know")
    return dict(statement)


def _check_digest(statement: Mapping[str, Any], weights: Path) -> None:
    try:
        (subject,) = statement["subject"]
        stated = subject["digest"]["sha256"]
    except (KeyError, TypeError, ValueError) as error:
        raise VerificationError("digest", "the certificate names no single subject") from error
    try:
        with weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise VerificationError("digest", "the weights cannot be read") from error
    if digest.hexdigest() != stated:
        raise VerificationError("digest", "these are not the weights that were certified")


def _check_validity(predicate: Mapping[str, Any], signer: TrustedKey) -> None:
    try:
        certified_at = datetime.fromisoformat(predicate["times"]["certified_at"])
        valid = signer.was_valid(certified_at)
    except (ValueError, KeyError, TypeError) as error:
        raise VerificationError("statement", "it does not say when it was made") from error
    if not valid:
        raise VerificationError("statement", "its key was not in use when it says it was made")


def _check_log(proof: LogProof, payload: bytes, trusted: Sequence[TrustedKey]) -> Checkpoint:
    """Check that the log that a trusted key signed holds the certificate's entry."""
    try:
        entry = json.loads(proof.entry)
        told = entry["kind"] == _ISSUED and entry["sha256"] == hashlib.sha256(payload).hexdigest()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise VerificationError("log", "not an entry of the log") from error
    if not told:
        raise VerificationError("log", "the entry is about something else")
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


def _check_history(
    proof: LogProof, checkpoint: Checkpoint, older: bytes, trusted: Sequence[TrustedKey]
) -> str:
    """Check that the log begins with the one that an older checkpoint is of."""
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


def _open(step: str, note: bytes, trusted: Sequence[TrustedKey]) -> Checkpoint:
    try:
        return open_checkpoint(note, [NoteKey(origin_of(note), key.public_key) for key in trusted])
    except NoteError as error:
        raise VerificationError(step, str(error)) from error


def _roots(predicate: Mapping[str, Any]) -> dict[str, Any]:
    try:
        forgotten = predicate["forgotten"]
        return {
            "covered_root": forgotten["commitments_root"],
            "excluded_root": forgotten.get("excluded_root"),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise VerificationError("receipt", "the certificate covers no forgotten record") from error

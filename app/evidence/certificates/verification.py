"""Offline verification: it needs only the bundle, the weights and trusted keys.

The steps, named where they run:

1. bundle     the file is a bundle of bounded size and depth, with one envelope
2. signature  a trusted Ed25519 key signed the payload; nothing in it is parsed before
3. statement  the payload is an in-toto statement that matches the schema, and its fields are
              consistent
4. digest     the weight file is the subject
5. weights    the file holds the tensors that the mechanism claims to have trained
6. guarantee  the claims are exactly those that follow from the parameters
7. log        the certificate's entry is in the transparency log, signed by a key that is in use
              now; it was recorded while the key of step 2 was valid
8. witnesses  enough of the given witnesses have cosigned that log (if any are given)
9. history    that log extends an older checkpoint (if one is given)
10. previous  the certificate accounts for all that an older one did (if one is given)
11. receipt   the certificate accounts for one forget request's records (if a receipt is given)

The algorithms are fixed here, never read from the document. ``trusted`` lists what no step checks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from securesystemslib.dsse import Envelope

from app.domain.errors import VerificationError
from app.evidence.certificates.bundle import Bundle, read_bundle
from app.evidence.certificates.checkpoint import Checkpoint
from app.evidence.certificates.checks.consistency import check_consistency
from app.evidence.certificates.checks.growth import check_growth
from app.evidence.certificates.checks.guarantee import check_guarantee
from app.evidence.certificates.checks.log import check_history, check_log
from app.evidence.certificates.checks.tensors import check_tensors
from app.evidence.certificates.cosignature import WitnessKey, check_witnesses
from app.evidence.certificates.parameters import read_parameters
from app.evidence.certificates.receipts import Receipt, check_receipt
from app.evidence.certificates.schema import (
    AsTrained,
    Predicate,
    Release,
    Statement,
    read_statement,
)
from app.evidence.certificates.signing import PAYLOAD_TYPE
from app.evidence.certificates.trusted_keys import TrustedKey, TrustedKeys, read_trusted_keys
from app.evidence.certificates.weights_file import WeightsFile, opened
from app.planning.mechanisms.mechanism import Mechanism


@dataclass(frozen=True)
class VerifiedStep:
    """A passed step and its result."""

    name: str
    finding: str


Report = Callable[[VerifiedStep], None]


def verify(
    *,
    bundle: bytes,
    weights: Path | bytes,
    trusted: bytes,
    consistent_with: bytes | None = None,
    witnesses: Sequence[WitnessKey] = (),
    witnesses_required: int | None = None,
    previous: bytes | None = None,
    receipt: bytes | None = None,
    now: datetime | None = None,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Check a certificate and return its predicate.

    Args:
        bundle: the bundle's content.
        weights: the safetensors file that it should be about, or its content.
        trusted: the service's published list of keys.
        consistent_with: an older checkpoint of the same log.
        witnesses: the witnesses that may have cosigned the log.
        witnesses_required: how many of them must have cosigned; by default all.
        previous: the bundle of an older certificate of the same model.
        receipt: the receipt of a forget request that the certificate should cover.
        now: the current time; by default this machine's clock.
        report: called with each passed step.
    """
    keys = read_trusted_keys(trusted)
    parts, signer = _signed(bundle, keys, report)
    statement, stated = check_statement(parts.envelope.payload, weights=weights, report=report)
    predicate = statement.predicate
    checkpoint = _check_place(parts, predicate, keys, signer, now=now)
    report(VerifiedStep("log", f"entry {parts.log.index} of {checkpoint.size}"))
    if witnesses:
        required = len(witnesses) if witnesses_required is None else witnesses_required
        note = parts.log.checkpoint.encode()
        finding = check_witnesses(note, witnesses, required=required)
        report(VerifiedStep("witnesses", finding))
    if consistent_with is not None:
        finding = check_history(parts.log, checkpoint, consistent_with, keys)
        report(VerifiedStep("history", finding))
    older: Predicate | None = None
    if previous is not None:
        payload, before = _older(previous, keys)
        older = before.predicate
        finding = check_growth(statement, before, parts.growth, old_payload=payload)
        report(VerifiedStep("previous", finding))
    if receipt is not None:
        finding = _check_receipt(receipt, parts, predicate, older)
        report(VerifiedStep("receipt", finding))
    return stated


def _older(bundle: bytes, keys: TrustedKeys) -> tuple[bytes, Statement]:
    """Return an older certificate's payload, and its statement."""
    try:
        payload = _signed(bundle, keys)[0].envelope.payload
        return payload, _read(payload)[0]
    except VerificationError as error:
        raise VerificationError("previous", f"the older certificate: {error}") from error


def _check_receipt(
    receipt: bytes, parts: Bundle, predicate: Predicate, older: Predicate | None
) -> str:
    if isinstance(predicate, AsTrained):
        raise VerificationError("receipt", "the certificate covers no forgotten record")
    same = (
        isinstance(older, Release)
        and older.forgotten.since_version == predicate.forgotten.since_version
    )
    return check_receipt(
        Receipt.from_json(receipt),
        parts.request,
        predicate.forgotten,
        members=predicate.members if isinstance(predicate, Release) else None,
        since=older if same else None,
    )


def check_place(*, bundle: bytes, trusted: bytes) -> None:
    """Check a certificate whose statement has passed ``check_statement``: steps 1, 2 and 7."""
    keys = read_trusted_keys(trusted)
    parts, signer = _signed(bundle, keys)
    statement, _ = read_statement(parts.envelope.payload)
    _check_place(parts, statement.predicate, keys, signer)


def check_statement(
    payload: bytes,
    *,
    weights: Path | bytes | WeightsFile | None,
    report: Report = lambda _: None,
) -> tuple[Statement, dict[str, Any]]:
    """Check a certificate's content, independent of its signature: steps 3 to 6.

    Without ``weights``, steps 4 and 5 are left out: they passed for the same claims before.

    Return the statement, and its predicate as plain JSON values.
    """
    statement, stated, mechanism = _read(payload)
    predicate = statement.predicate
    report(VerifiedStep("statement", f"a certificate of basis {predicate.basis}"))
    if weights is not None:
        with opened(weights) as file:
            if file.sha256() != statement.subject[0].digest.sha256:
                raise VerificationError("digest", "these are not the weights that were certified")
            report(VerifiedStep("digest", "the weights are the certificate's subject"))
            report(VerifiedStep("weights", check_tensors(predicate, mechanism, file)))
    report(VerifiedStep("guarantee", check_guarantee(predicate, stated, mechanism)))
    return statement, stated


def _read(payload: bytes) -> tuple[Statement, dict[str, Any], Mechanism | None]:
    """Return a consistent statement, its predicate as plain JSON values, and its mechanism."""
    statement, stated = read_statement(payload)
    predicate = statement.predicate
    mechanism: Mechanism | None = None
    if isinstance(predicate, Release):
        mechanism = read_parameters(predicate.mechanism.name, predicate.mechanism.parameters)
    check_consistency(predicate, mechanism)
    return statement, stated, mechanism


def _signed(
    bundle: bytes, keys: TrustedKeys, report: Report = lambda _: None
) -> tuple[Bundle, TrustedKey]:
    """Parse a bundle and find the key that signed it."""
    parts = read_bundle(bundle)
    report(VerifiedStep("bundle", "one signed envelope and its place in the log"))
    signer = _check_signature(parts.envelope, keys)
    report(VerifiedStep("signature", "made by a given key"))
    return parts, signer


def _check_place(
    parts: Bundle,
    predicate: Predicate,
    keys: TrustedKeys,
    signer: TrustedKey,
    *,
    now: datetime | None = None,
) -> Checkpoint:
    return check_log(
        parts.log,
        parts.envelope.payload,
        predicate,
        trusted=keys,
        signer=signer,
        now=now or datetime.now(UTC),
    )


def _check_signature(envelope: Envelope, trusted: TrustedKeys) -> TrustedKey:
    if envelope.payload_type != PAYLOAD_TYPE:
        raise VerificationError("signature", "the payload is of another type")
    ((key_id, signature),) = envelope.signatures.items()
    for key in trusted.keys:
        if key.id == key_id:
            try:
                key.public_key.verify(bytes.fromhex(signature.signature), envelope.pae())
            except (InvalidSignature, ValueError) as error:
                raise VerificationError("signature", "it does not match") from error
            return key
    raise VerificationError("signature", "made by a key that was not given")

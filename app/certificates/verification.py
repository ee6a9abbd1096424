"""Offline verification: nothing is needed but the bundle, the weights and a trusted key.

The plan, each step of which is named where it runs:

1. bundle     the file is a bundle of bounded size and depth, with one envelope
2. signature  the trusted Ed25519 key signed the payload; nothing is parsed before
3. statement  the payload is an in-toto statement of the known predicate type
4. digest     the weight file is the subject
5. guarantee  recomputed from the parameters, it is no weaker than stated, and meets the target

The algorithm is fixed here; it is never read from the document.
"""

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.dsse import Envelope

from app.accounting import catalogue
from app.accounting.guarantees import GaussianGuarantee, Guarantee
from app.certificates.ledger_check import MAX_STEPS, check_ledger
from app.certificates.signing import PAYLOAD_TYPE
from app.certificates.statement import PREDICATE_TYPE, STATEMENT_TYPE
from app.domain.errors import ExpungeError, VerificationError
from app.domain.schedules import MAX_SCHEDULE_STEPS
from app.domain.states import Basis

MAX_BUNDLE_BYTES = 4 * 1024 * 1024
MAX_SIGNATURES = 8
_RELATIVE_TOLERANCE = 1e-12
_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class VerifiedStep:
    """One step that passed, and what it established."""

    name: str
    finding: str


def verify(
    *,
    bundle: bytes,
    weights: Path,
    key_pem: bytes,
    report: Callable[[VerifiedStep], None] = lambda _: None,
) -> dict[str, Any]:
    """Check a certificate and return its predicate.

    Args:
        bundle: the bundle's content.
        weights: the safetensors file that it should speak about.
        key_pem: the trusted Ed25519 public key.
        report: told of each step that passed.

    Raises:
        VerificationError: naming the first step that failed.
    """
    envelope = _envelope(bundle)
    report(VerifiedStep("bundle", "one signed envelope"))
    _check_signature(envelope, key_pem)
    report(VerifiedStep("signature", "made by the given key"))
    statement = _statement(envelope.payload)
    predicate = statement["predicate"]
    report(VerifiedStep("statement", f"a certificate of basis {predicate['basis']}"))
    _check_digest(statement, weights)
    report(VerifiedStep("digest", "the weights are the certificate's subject"))
    report(VerifiedStep("guarantee", _check_guarantee(predicate)))
    return dict(predicate)


def _envelope(bundle: bytes) -> Envelope:
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise VerificationError("bundle", f"larger than {MAX_BUNDLE_BYTES} bytes")
    try:
        document = json.loads(bundle)
        envelope = Envelope.from_dict(deepcopy(document["envelope"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise VerificationError("bundle", "not a bundle") from error
    if not 1 <= len(envelope.signatures) <= MAX_SIGNATURES:
        raise VerificationError("bundle", f"needs 1 to {MAX_SIGNATURES} signatures")
    # Base64 has spare bits and skips foreign characters: one signed content, one spelling.
    if document["envelope"] != envelope.to_dict():
        raise VerificationError("bundle", "its envelope is not in the form that was signed")
    return envelope


def _check_signature(envelope: Envelope, key_pem: bytes) -> None:
    try:
        key = load_pem_public_key(key_pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise VerificationError("signature", "the given key is not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise VerificationError("signature", "the given key is not an Ed25519 key")
    if envelope.payload_type != PAYLOAD_TYPE:
        raise VerificationError("signature", "the payload is of another type")
    for signature in envelope.signatures.values():
        try:
            key.verify(bytes.fromhex(signature.signature), envelope.pae())
        except (InvalidSignature, ValueError):
            continue
        return
    raise VerificationError("signature", "no signature by the given key matches")


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
    digest = hashlib.sha256()
    try:
        with weights.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise VerificationError("digest", "the weights cannot be read") from error
    if digest.hexdigest() != stated:
        raise VerificationError("digest", "these are not the weights that were certified")


def _check_guarantee(predicate: Mapping[str, Any]) -> str:
    basis = Basis(predicate["basis"])
    try:
        stated = predicate["guarantee"]
        if basis is Basis.RELEASED_AS_TRAINED:
            _require(stated["kind"] == "none", "a model released as trained has no guarantee")
            return "none: this version protects nobody yet"
        if basis is Basis.EXCLUDED_FROM_TRAINING:
            _require(stated["kind"] == "exact", "an exclusion must be exact")
            return "exact: the records never touched the weights"
        return _compare(stated, predicate["target"], _recompute(predicate["mechanism"]))
    except ExpungeError as error:
        if isinstance(error, VerificationError):
            raise
        raise VerificationError("guarantee", str(error)) from error
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise VerificationError("guarantee", "its parameters cannot be read") from error


def _recompute(mechanism: Mapping[str, Any]) -> Guarantee:
    """Account for what was done; only by our own accountants, and only if that is feasible."""
    name, parameters = mechanism["name"], mechanism["parameters"]
    _require(isinstance(parameters, Mapping), "its parameters cannot be read")
    _require(name in catalogue.MECHANISMS, "no mechanism that this version certifies")
    check_ledger(mechanism)
    counts = [value for value in parameters.values() if isinstance(value, int)]
    _require(all(count <= MAX_STEPS for count in counts), f"more than {MAX_STEPS} steps")
    schedules = [value for value in parameters.values() if isinstance(value, list)]
    _require(
        all(len(schedule) <= MAX_SCHEDULE_STEPS for schedule in schedules),
        f"a schedule of more than {MAX_SCHEDULE_STEPS} numbers",
    )
    return catalogue.account(name, parameters)


def _compare(stated: Mapping[str, Any], target: Mapping[str, Any], recomputed: Guarantee) -> str:
    _require(
        _at_most(recomputed.epsilon(delta=stated["delta"]), stated["epsilon"])
        or recomputed.meets(epsilon=stated["epsilon"], delta=stated["delta"]),
        "the stated epsilon is too small",
    )
    _require(
        _at_most(recomputed.advantage(), stated["attacker_advantage"]),
        "the stated attacker's advantage is too small",
    )
    _require(
        stated["neighbouring_relation"] == recomputed.terms.neighbours,
        "the neighbouring relation is another",
    )
    _require(stated["adaptive"] == recomputed.terms.adaptive, "adaptivity is not as stated")
    _require(stated["direction"] == recomputed.terms.direction, "the direction is not as stated")
    _require(stated["reference"] == recomputed.terms.reference, "the reference is not as stated")
    if isinstance(recomputed, GaussianGuarantee):
        _require(_at_most(recomputed.mu, stated["mu"]), "the stated mu is too small")
        _require(
            _at_most(recomputed.surviving_information_bits(), stated["surviving_information_bits"]),
            "the stated surviving information is too small",
        )
    _require(
        recomputed.meets(epsilon=target["epsilon"], delta=target["delta"]),
        "the target is not met",
    )
    return f"epsilon {stated['epsilon']:.6g} at delta {stated['delta']:.3g}, as recomputed"


def _at_most(actual: float, stated: float) -> bool:
    if not (math.isfinite(actual) and math.isfinite(stated)):
        return False
    return actual <= stated * (1 + _RELATIVE_TOLERANCE)


def _require(condition: bool, reason: str) -> None:  # noqa: FBT001
    if not condition:
        raise VerificationError("guarantee", reason)


def payload_of(envelope_json: str) -> dict[str, Any]:
    """Return an envelope's statement without checking anything; for display only.

    Raises:
        VerificationError: it cannot be read.
    """
    try:
        return dict(json.loads(base64.b64decode(json.loads(envelope_json)["payload"])))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise VerificationError("bundle", "not a bundle") from error

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

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from securesystemslib.dsse import Envelope

from app.domain import merkle, strict_json
from app.domain.errors import (
    ExpungeError,
    MissingExtraError,
    NoteError,
    ProofError,
    VerificationError,
)
from app.evidence.certificates.bundle import Bundle, LogProof, RequestProof, read_bundle
from app.evidence.certificates.consistency import check_consistency
from app.evidence.certificates.growth import check_growth
from app.evidence.certificates.note import (
    Checkpoint,
    NoteKey,
    WitnessKey,
    check_witnesses,
    open_checkpoint,
    origin_of,
)
from app.evidence.certificates.parameters import read_parameters
from app.evidence.certificates.receipts import Receipt, check_receipt
from app.evidence.certificates.schema import (
    AsTrained,
    Exclusion,
    Predicate,
    Release,
    Statement,
    read_statement,
)
from app.evidence.certificates.signing import PAYLOAD_TYPE
from app.evidence.certificates.statement import (
    EXCLUDED,
    NO_GUARANTEE,
    claims_of,
    exclusion_assumptions,
)
from app.evidence.certificates.tensors import check_tensors
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
    weights: Path | bytes | None,
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
        weights: the safetensors file that it should be about, or its content; without it, steps 4
            and 5 are left out.
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
    since: Predicate | None = None
    before: RequestProof | None = None
    if previous is not None:
        old, older = _older(previous, keys)
        since, before = older.predicate, old.request
        payload = old.envelope.payload
        finding = check_growth(statement, older, parts.growth, old_payload=payload)
        report(VerifiedStep("previous", finding))
    if receipt is not None:
        if isinstance(predicate, AsTrained):
            raise VerificationError("receipt", "the certificate covers no forgotten record")
        same = (
            isinstance(since, Release | Exclusion)
            and since.forgotten.since_version == predicate.forgotten.since_version
        )
        finding = check_receipt(
            Receipt.from_json(receipt),
            parts.request,
            predicate.forgotten,
            members=predicate.members if isinstance(predicate, Release) else None,
            since=since if same else None,
            before=before,
        )
        report(VerifiedStep("receipt", finding))
    return stated


def _older(bundle: bytes, keys: TrustedKeys) -> tuple[Bundle, Statement]:
    """Return an older certificate's bundle, and its statement."""
    try:
        parts, _ = _signed(bundle, keys)
        return parts, _read(parts.envelope.payload)[0]
    except VerificationError as error:
        raise VerificationError("previous", f"the older certificate: {error}") from error


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
    signer = check_signature(parts.envelope, keys)
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


def check_signature(envelope: Envelope, trusted: TrustedKeys) -> TrustedKey:
    """Return the key that signed an envelope of ours."""
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


RELATIVE: Final = 1e-9


def check_guarantee(
    predicate: Predicate, stated: Mapping[str, Any], mechanism: Mechanism | None
) -> str:
    """Check guarantee, accountant and assumptions; return the guarantee in a few words."""
    try:
        computed = _computed(predicate, mechanism)
    except MissingExtraError as error:
        raise VerificationError("guarantee", f"it cannot be recomputed here: {error}") from error
    except (ExpungeError, ArithmeticError, ValueError, TypeError) as error:
        reason = str(error) if isinstance(error, ExpungeError) else "it cannot be computed"
        raise VerificationError("guarantee", reason) from error
    for name, claim in computed.items():
        where = difference(stated[name], claim, name)
        if where is not None:
            raise VerificationError("guarantee", f"{where} is not what follows from the parameters")
    if isinstance(predicate, AsTrained):
        return "none: this version protects no record yet"
    if isinstance(predicate, Exclusion):
        return "exact: the records never touched the weights"
    guarantee = stated["guarantee"]
    return f"epsilon {guarantee['epsilon']:.6g} at delta {guarantee['delta']:.3g}, as recomputed"


def _computed(predicate: Predicate, mechanism: Mechanism | None) -> dict[str, Any]:
    own = predicate.backbone
    backbone = None if own is None else own.digest()
    base = None if predicate.base is None else predicate.base.digest()
    if isinstance(predicate, AsTrained):
        return {"guarantee": NO_GUARANTEE}
    if isinstance(predicate, Exclusion) or mechanism is None:
        anew = isinstance(predicate, Exclusion) and predicate.trained_anew is not None
        assumptions = exclusion_assumptions(backbone, base, trained_anew=anew)
        return {"guarantee": EXCLUDED, "assumptions": assumptions}
    mechanism.refuse_slow()
    return claims_of(
        mechanism,
        epsilon=predicate.target.epsilon,
        delta=predicate.target.delta,
        backbone=backbone,
        base=base,
    )


def difference(stated: Any, computed: Any, where: str) -> str | None:  # noqa: ANN401 - JSON
    """Return the path of the first difference between two JSON values; None if there is none.

    Floats may differ by a relative 1e-9 in either direction: a claim weaker than what follows from
    the parameters is as wrong as a stronger one. All else must be equal, including types, except
    that an integer may replace a float.
    """
    if isinstance(computed, Mapping):
        if not isinstance(stated, Mapping) or set(stated) != set(computed):
            return where
        pairs = [(f"{where}.{name}", stated[name], computed[name]) for name in computed]
    elif isinstance(computed, list | tuple):
        if not isinstance(stated, list) or len(stated) != len(computed):
            return where
        both = zip(stated, computed, strict=True)
        pairs = [(f"{where}.{index}", *each) for index, each in enumerate(both)]
    else:
        return None if _same(stated, computed) else where
    found = (difference(inner, computed_inner, place) for place, inner, computed_inner in pairs)
    return next((place for place in found if place is not None), None)


def _same(stated: Any, computed: Any) -> bool:  # noqa: ANN401
    if type(computed) is float and type(stated) in (int, float):
        try:
            return math.isfinite(computed) and math.isclose(stated, computed, rel_tol=RELATIVE)
        except OverflowError:
            return False
    if isinstance(computed, str):
        return isinstance(stated, str) and stated == computed
    return type(stated) is type(computed) and bool(stated == computed)


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
    checkpoint = check_inclusion(proof, trusted, now)
    if not signer.vouches_for(recorded_at, now=now):
        raise VerificationError(
            "log", "its key was not valid when it was recorded: download the bundle again"
        )
    return checkpoint


def check_inclusion(proof: LogProof, trusted: TrustedKeys, now: datetime) -> Checkpoint:
    """Check that an entry is in a log that a key in use has signed."""
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

"""The report of an audit: an in-toto statement under the auditor's own key, and what it says.

It holds the scores and the coins, so that whoever checks it counts right guesses, bound and verdict
again. It holds no content of a canary. ``verify`` needs neither the service nor PyTorch.

*Consistent* it is only if the same attacks have found the canaries while they were there: otherwise
a service that never trained on them, or a score that sees nothing, would do as well.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import Field, StrictFloat, StrictInt, ValidationError

from app.client.download import Downloaded
from app.domain import strict_json
from app.domain.errors import VerificationError
from app.domain.states import Verdict
from app.evidence.certificates.bundle import read_bundle
from app.evidence.certificates.schema import (
    STATEMENT_TYPE,
    WEIGHTS_NAME,
    Count,
    Moment,
    Name,
    Number,
    Section,
    Sha256,
    Subject,
)
from app.evidence.certificates.signing import StatementSigner, is_signed, payload_of
from workers.audit import statistics

AUDIT_TYPE: Final = "urn:expunge:audit:v1"
CANNOT_SHOW: Final = (
    "An audit can contradict a certificate; it never proves one. What these scores do not see may "
    "be left behind.",
    "It is about a copy that was trained for it, on other records. A service that knows an audit "
    "can treat it otherwise than the people in the audited model.",
    "Its bound holds at the stated confidence, for this one release, against these scores. A "
    "better attack may find more.",
    "It is the auditor's word that the coins were fair and never reached the service, and that "
    "this is the only audit, or how many there were: the signature says whose word.",
)
_Scores = Sequence[Sequence[Sequence[float]]]
_MAX_BYTES: Final = 64 << 20
_MOST: Final = statistics.MOST_GUESSES
_Share = Annotated[StrictFloat, Field(ge=0, le=1)]
_Epsilon = Annotated[StrictFloat, Field(ge=0)]
_Score = Annotated[list[StrictFloat], Field(min_length=2, max_length=2)]
_Attack = Annotated[list[_Score], Field(max_length=_MOST)]
_Attacks = Annotated[
    list[_Attack], Field(min_length=statistics.ATTACKS, max_length=statistics.ATTACKS)
]


class _Audited(Section):
    model: Name
    version: Number | None
    weights: Literal["train", "upload"]


class _Claim(Section):
    """What the certificate of the release says of all canaries together."""

    certificate_sha256: Sha256
    mechanism: Name | None
    epsilon: _Epsilon
    delta: _Share


class _Method(Section):
    canaries: Number
    guesses: Number
    confidence: Annotated[StrictFloat, Field(gt=0, lt=1)]
    other_records: Count
    rows: Name
    score: Name


class _Result(Section):
    """What follows: how likely so many right guesses are at most, and what ε is at least."""

    right: Annotated[StrictInt, Field(ge=0)]
    p_value: _Share
    epsilon_lower_bound: _Epsilon
    right_before: Annotated[StrictInt, Field(ge=0)] | None
    verdict: Annotated[Verdict, Field(strict=False)]


class _Predicate(Section):
    audited: _Audited
    copied_as: Name
    claim: _Claim
    method: _Method
    scores: _Attacks
    scores_before: _Attacks | None
    coins: Annotated[str, Field(pattern=r"^[01]+\z", max_length=_MOST)]
    result: _Result
    cannot_show: list[str]
    started_at: Moment
    ended_at: Moment
    software: Name


class _Statement(Section):
    type_: Literal[STATEMENT_TYPE] = Field(alias="_type")  # type: ignore[valid-type]
    subject: Annotated[list[Subject], Field(min_length=1, max_length=1)]
    predicate_type: Literal[AUDIT_TYPE] = Field(alias="predicateType")  # type: ignore[valid-type]
    predicate: _Predicate


@dataclass(frozen=True)
class Report:
    """A report that was not signed yet, or whose signature was checked."""

    statement: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        *,
        audited: Mapping[str, Any],
        release: Downloaded,
        predicate: Mapping[str, Any],
        method: Mapping[str, Any],
        scores: _Scores,
        before: _Scores | None,
        coins: Sequence[int],
        started_at: datetime,
    ) -> "Report":
        """Return the report of an audit; ``predicate`` is that of the release's certificate.

        ``scores`` are by each attack, of both contents of each canary; ``before`` those of the
        release before the request, None if there was none.
        """
        epsilon, delta = claim_of(predicate) or (0.0, 1.0)
        return cls(
            {
                "_type": STATEMENT_TYPE,
                "subject": [{"name": WEIGHTS_NAME, "digest": {"sha256": _sha256(release.weights)}}],
                "predicateType": AUDIT_TYPE,
                "predicate": {
                    "audited": dict(audited),
                    "copied_as": predicate["model"]["name"],
                    "claim": {
                        "certificate_sha256": _sha256(release.certificate),
                        "mechanism": predicate.get("mechanism", {}).get("name"),
                        "epsilon": epsilon,
                        "delta": delta,
                    },
                    "method": dict(method),
                    "scores": scores,
                    "scores_before": before,
                    "coins": "".join(map(str, coins)),
                    "result": _result(scores, before, coins, method, epsilon, delta),
                    "cannot_show": list(CANNOT_SHOW),
                    "started_at": started_at.isoformat(),
                    "ended_at": datetime.now(UTC).isoformat(),
                    "software": f"expunge {metadata.version('expunge')}",
                },
            }
        )

    @property
    def predicate(self) -> Mapping[str, Any]:
        """What it says."""
        found: Mapping[str, Any] = self.statement["predicate"]
        return found

    @property
    def contradicts(self) -> bool:
        """Whether the certificate is contradicted."""
        return bool(self.predicate["result"]["verdict"] == Verdict.CONTRADICTED)

    def signed(self, signer: StatementSigner) -> str:
        """Return the text of its file."""
        return signer.sign(self.statement).envelope

    def in_words(self) -> list[str]:
        """Return what it says, a line each."""
        claim, method, result = (self.predicate[name] for name in ("claim", "method", "result"))
        needed = fewest_contradicting(self.predicate)
        promised = (
            "exactly what a training without the canaries gives (ε = 0, δ = 0)"
            if claim["epsilon"] == claim["delta"] == 0
            else f"ε = {claim['epsilon']:.4g} with δ = {claim['delta']:.3g}"
        )
        audited, before = self.predicate["audited"], result["right_before"]
        return [
            f"The certificate promises {promised}, by {claim['mechanism'] or 'no run'}.",
            f"{method['canaries']} canaries were learned and forgotten among "
            f"{method['other_records']} other records; of {method['guesses']} coins the best of "
            f"three attacks guessed {result['right']} right, where chance gives each "
            f"{method['guesses'] / 2:g} "
            + (
                "and no number would contradict so weak a promise."
                if needed is None
                else f"and {needed} would contradict the promise."
            ),
            "Nothing was released before the request: what the attacks can see is not known."
            if before is None
            else f"In the release before the request, {before} were: the attacks "
            + ("see" if result["verdict"] != Verdict.INCONCLUSIVE else "do not even see")
            + " canaries that are there.",
            f"If it is true, so many right guesses have a chance of at most "
            f"{result['p_value']:.3g}.",
            f"At {100 * method['confidence']:g} % confidence ε is at least "
            f"{result['epsilon_lower_bound']:.4g}.",
            f"Verdict on {audited['model']}, as its copy {self.predicate['copied_as']}: "
            f"{result['verdict']}.",
        ]


def claim_of(predicate: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return ε and δ of a certificate; None if it guarantees nothing."""
    guarantee = predicate["guarantee"]
    if "epsilon" not in guarantee:
        return None
    if guarantee["kind"] == "exact":  # its delta is the policy's, which it does not need
        return 0.0, 0.0
    return float(guarantee["epsilon"]), float(guarantee["delta"])


def fewest_contradicting(predicate: Mapping[str, Any]) -> int | None:
    """Return how many right guesses would contradict it; None if all would not."""
    claim, method = predicate["claim"], predicate["method"]
    return statistics.fewest_contradicting(
        guesses=method["guesses"],
        epsilon=claim["epsilon"],
        delta=claim["delta"],
        confidence=method["confidence"],
    )


def verify(
    content: bytes,
    key: Ed25519PublicKey,
    *,
    weights: bytes | None = None,
    certificate: bytes | None = None,
    report: Callable[[str, str], None] = lambda _step, _finding: None,
) -> Report:
    """Check a signed report, and count again.

    Args:
        content: of its file.
        key: the auditor's, from another channel than the report.
        weights: the release that it should be about.
        certificate: that release's.
        report: called with each step that passed.

    Raises:
        VerificationError: with the first step that failed.
    """
    # 1. the signature, before anything of the statement is read
    try:
        text = content[:_MAX_BYTES].decode()
        if not is_signed(text, key):
            raise VerificationError("signature", "not of this auditor's key")
        payload = payload_of(text)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise VerificationError("report", "not a signed report") from error
    report("signature", "of the auditor's key")
    # 2. the statement's form
    try:
        document = strict_json.loads(payload)
        predicate = _Statement.model_validate(document).predicate
    except (ValidationError, ValueError, TypeError, RecursionError) as error:
        raise VerificationError("statement", "not the report of an audit") from error
    canaries, before = predicate.method.canaries, predicate.scores_before
    lengths = {len(predicate.coins), *map(len, predicate.scores), *map(len, before or [])}
    if lengths != {canaries} or predicate.method.guesses > canaries:
        raise VerificationError("statement", "scores and coins are not of all canaries")
    report("statement", f"{canaries} canaries of {predicate.audited.model}")
    # 3. the files that it names
    _check_files(document, weights, certificate, report)
    # 4. right guesses, p-value, bound and verdict
    claim, method = predicate.claim, predicate.method
    coins = [int(each) for each in predicate.coins]
    again = _result(
        predicate.scores, before, coins, method.model_dump(), claim.epsilon, claim.delta
    )
    stated = predicate.result.model_dump()
    for name, value in again.items():
        same = (
            abs(value - stated[name]) <= 1e-9 * max(1.0, abs(value))
            if isinstance(value, float)
            else value == stated[name]
        )
        if not same:
            raise VerificationError("result", f"{name} does not follow from scores and coins")
    report("result", f"{again['right']} of {method.guesses} right")
    return Report(document)


def _check_files(
    document: Mapping[str, Any],
    weights: bytes | None,
    certificate: bytes | None,
    report: Callable[[str, str], None],
) -> None:
    """Compare files with what a report says; who signed a certificate is for ``expunge verify``."""
    claim, subject = document["predicate"]["claim"], document["subject"][0]["digest"]["sha256"]
    for name, file, stated in (
        ("weights", weights, subject),
        ("certificate", certificate, claim["certificate_sha256"]),
    ):
        if file is not None:
            if hashlib.sha256(file).hexdigest() != stated:
                raise VerificationError(name, "another file than the one that was audited")
            report(name, stated)
    if certificate is None:
        return
    try:
        statement = strict_json.loads(read_bundle(certificate).envelope.payload)
        predicate = statement["predicate"]
        said = (
            claim_of(predicate),
            predicate.get("mechanism", {}).get("name"),
            predicate["model"]["name"],
            statement["subject"][0]["digest"]["sha256"],
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise VerificationError("certificate", "not a certificate") from error
    reported = (claim["epsilon"], claim["delta"])
    if said != (reported, claim["mechanism"], document["predicate"]["copied_as"], subject):
        raise VerificationError("certificate", "it does not say what the report says of it")


def _result(
    scores: _Scores,
    before: _Scores | None,
    coins: Sequence[int],
    method: Mapping[str, Any],
    epsilon: float,
    delta: float,
) -> dict[str, Any]:
    guesses, confidence = method["guesses"], method["confidence"]
    right = statistics.right_guesses(scores, coins, guesses)
    p_value = statistics.p_value(guesses=guesses, right=right, epsilon=epsilon, delta=delta)
    right_before, verdict = None, Verdict.INCONCLUSIVE
    if before is not None:
        right_before = statistics.right_guesses(before, coins, guesses)
        by_chance = statistics.p_value(guesses=guesses, right=right_before, epsilon=0, delta=0)
        if by_chance < 1 - confidence:
            verdict = Verdict.CONSISTENT
    return {
        "right": right,
        "p_value": p_value,
        "epsilon_lower_bound": statistics.epsilon_lower_bound(
            guesses=guesses, right=right, delta=delta, confidence=confidence
        ),
        "right_before": right_before,
        "verdict": Verdict.CONTRADICTED if p_value < 1 - confidence else verdict,
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

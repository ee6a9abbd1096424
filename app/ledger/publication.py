"""The publishing transaction, and what follows from it.

Version, certificate, obligations and the model's head change together or not at all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import func
from sqlalchemy.orm import Session

from app import log
from app.backbones.use import digest_of
from app.certificates.signing import StatementSigner
from app.certificates.statement import (
    CertifyingPhase,
    Subject,
    Times,
    as_trained_statement,
    unlearning_statement,
)
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import DraftOutdatedError, TargetNotMetError
from app.domain.ids import new_id
from app.domain.policy import Policy
from app.domain.states import Basis, FirstRelease, ObligationState, RunKind, RunState, VersionState
from app.failpoints import reach
from app.ledger import certifying, outbox, repository
from app.ledger.bundles import bundle_of
from app.ledger.obligations import certify_obligations
from app.ledger.runs import holder
from app.ledger.tables import RunRow
from app.ledger.withdrawal import retire
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.tracking import Tracking, history_of_run
from app.registry import repository as registry
from app.registry.tables import ModelRow, VersionRow
from app.storage.blobs import Blobs, StoredBlob, doom_attempt

Examiner = Callable[[Mapping[str, Any]], None]
"""Checks a bundle, given as plain JSON values, and raises ``ExpungeError`` to refuse it."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
        weights: the stored checkpoint.
        phase: how the target was met; None for weights published as they were trained.
        evaluation: figures outside the guarantee.
        certified_at: when the target was met.
        phase_seconds: how long each phase took.
    """

    weights: StoredBlob
    phase: CertifyingPhase | None
    evaluation: Mapping[str, Any]
    certified_at: datetime
    phase_seconds: Mapping[str, float]


def draft(session: Session, *, run_id: str, result: RunResult) -> dict[str, Any]:
    """Return the statement that ``publish`` would sign now; takes no lock.

    Checking it may take seconds, and no lock should be held meanwhile.
    """
    run = repository.run(session, run_id)
    model = session.get_one(ModelRow, run.model_id)
    basis = _basis(session, run, model, result)
    version = _new_version(session, run, model, basis, result)
    return _statement(session, run, model, version, result, basis=basis)


def publish(
    session: Session,
    blobs: Blobs,
    signer: StatementSigner,
    *,
    run_id: str,
    fencing_token: int,
    result: RunResult,
    checked: Mapping[str, Any],
    examine: Examiner,
) -> VersionRow:
    """Publish a run's result: version, certificate, obligations and head in one transaction.

    Calling it again after a commit whose answer was lost returns what was published.

    Args:
        session: its transaction publishes.
        blobs: hold the weights.
        signer: signs the certificate.
        run_id: which run.
        fencing_token: of the attempt.
        result: of the run.
        checked: the drafted statement, which the offline verifier has accepted.
        examine: receives the certificate's bundle before the commit, while the log is locked: it
            checks what is new in it, the signature and its place in the log.

    Raises:
        LeaseLostError: another worker holds the run; nothing is published.
        DraftOutdatedError: the statement to sign is not the checked one: draft it again.
        TargetNotMetError: uncertified weights, where the policy does not ask for them, or the same
            weights as before, where the certificate would claim new noise.
    """
    published = _published_before(session, run_id, fencing_token)
    if published is not None:
        return published
    run = holder(session, run_id, fencing_token)
    model = session.get_one(ModelRow, run.model_id, with_for_update=True)
    basis = _basis(session, run, model, result)
    previous = registry.head_version(session, model)
    version = _new_version(session, run, model, basis, result)
    _refuse_unchanged(previous, version, result.phase)
    statement = _statement(session, run, model, version, result, basis=basis)
    if statement != checked:
        raise DraftOutdatedError("another certificate of the model was issued meanwhile")
    certificate = certifying.issue(
        session, signer, model=model, version_id=version.id, basis=basis, statement=statement
    )
    version.certificate_id = certificate.id
    log.examine_at_commit(
        session, lambda at_end: examine(bundle_of(at_end, certificate, signer=signer))
    )
    if previous is not None:
        retire(session, blobs, previous, reason=_retirement_reason(run, version))
    session.flush()
    session.add(version)
    blobs.adopt(session, version.blob_id)
    session.flush()
    doom_attempt(session, run.id)  # reserved twice, as after a commit without an answer
    model.head_version_id = version.id
    model.tracking = _tracking(run, model, result.phase)
    if model.imported_blob_id is not None:
        blobs.doom(session, model.imported_blob_id)
        model.imported_blob_id = None
    run.state = RunState.PUBLISHED
    run.finished_at = func.clock_timestamp()
    run.phase = run.step = run.total_steps = None
    run.phase_seconds = dict(result.phase_seconds)
    run.lease_expires_at = None
    log.append(
        session,
        "version.published",
        version=version.id,
        model=model.id,
        run=run.id,
        number=version.number,
        state=version.state,
        certificate=certificate.id,
        sha256=version.sha256,
        blob=version.blob_id,
        size_bytes=version.size_bytes,
        covers_epoch=version.covers_epoch,
        tracking=log.digest_of(model.tracking),
    )
    certify_obligations(session, run, certificate.id)
    if repository.obligations_of_model(session, model.id, (ObligationState.OPEN,)):
        outbox.post(session, outbox.Topic.SCHEDULE_MODEL, model.id)
    reach("before_commit")
    return version


def _tracking(run: RunRow, model: ModelRow, phase: CertifyingPhase | None) -> dict[str, Any] | None:
    """Return what the lineage knows of its training after the run."""
    if phase is None or not phase.plan.is_tracked:
        return None
    plan = phase.plan
    begun = Tracking(plan.mechanism, begun_at_epoch=run.forget_epoch or 0)
    anew = run.kind == RunKind.TRAIN or mechanism_named(plan.mechanism).trains_anew
    before = begun if anew or model.tracking is None else Tracking.from_json(model.tracking)
    return replace(
        before,
        settings=plan.settings,
        training=plan.training,
        history=None if plan.history is None else history_of_run(plan, steps=phase.steps),
    ).to_json()


def _refuse_unchanged(
    previous: VersionRow | None, version: VersionRow, phase: CertifyingPhase | None
) -> None:
    claims_noise = phase is not None and phase.noise is not None
    if previous is not None and claims_noise and version.sha256 == previous.sha256:
        raise TargetNotMetError("the weights are those of the version before: nothing was added")


def _published_before(session: Session, run_id: str, fencing_token: int) -> VersionRow | None:
    run = repository.run(session, run_id, lock=True)
    if run.state != RunState.PUBLISHED or run.fencing_token != fencing_token:
        return None
    return registry.version_of_run(session, run_id)


def _basis(session: Session, run: RunRow, model: ModelRow, result: RunResult) -> Basis:
    policy = Policy.from_json(model.policy)
    is_first = registry.next_number(session, model.id) == 1
    if run.kind == RunKind.UNLEARN or (not is_first and _are_tainted(session, run, model)):
        basis = Basis.UNLEARNED
    elif is_first and policy.first_release is FirstRelease.AS_TRAINED:
        basis = Basis.RELEASED_AS_TRAINED
    else:
        basis = Basis.CERTIFIED_RELEASE
    if (result.phase is None) != (basis is Basis.RELEASED_AS_TRAINED):
        raise TargetNotMetError("the run's result does not fit the policy's first release")
    return basis


def _are_tainted(session: Session, run: RunRow, model: ModelRow) -> bool:
    """Return whether a run's weights were brought and may have learned from forgotten records."""
    if run.kind != RunKind.CERTIFY:
        return False
    accounted = certifying.accounted_for(session, model, through_epoch=run.forget_epoch or 0)
    return accounted.records > 0


def _new_version(
    session: Session, run: RunRow, model: ModelRow, basis: Basis, result: RunResult
) -> VersionRow:
    withheld = (
        Policy.from_json(model.policy).first_release is FirstRelease.NONE
        and basis is Basis.CERTIFIED_RELEASE
    )
    return VersionRow(
        id=new_id("ver"),
        model_id=model.id,
        run_id=run.id,
        number=registry.next_number(session, model.id),
        state=VersionState.PRIVATE if withheld else VersionState.CERTIFIED,
        blob_id=result.weights.id,
        sha256=result.weights.sha256,
        size_bytes=result.weights.size_bytes,
        covers_epoch=run.forget_epoch,
        evaluation=dict(result.evaluation),
    )


def _statement(
    session: Session,
    run: RunRow,
    model: ModelRow,
    version: VersionRow,
    result: RunResult,
    *,
    basis: Basis,
) -> dict[str, Any]:
    subject = Subject(model=model.name, version=version.number, weights_sha256=version.sha256)
    times = Times(
        started_at=run.started_at or result.certified_at, certified_at=result.certified_at
    )
    backbone = digest_of(session, ArchitectureSpec.from_json(model.architecture))
    if result.phase is None:
        return as_trained_statement(
            subject=subject, evaluation=result.evaluation, times=times, backbone=backbone
        )
    return unlearning_statement(
        basis=basis,
        subject=subject,
        coverage=certifying.accounted_for(
            session, model, through_epoch=version.covers_epoch
        ).coverage(),
        phase=result.phase,
        evaluation=result.evaluation,
        previous_certificate=certifying.previous_digest(session, model.id),
        times=times,
        backbone=backbone,
    )


def _retirement_reason(run: RunRow, successor: VersionRow) -> str:
    reason = f"replaced by version {successor.number}"
    if run.kind == RunKind.UNLEARN:
        return f"{reason}, to meet forget requests"
    return reason


def note_shredded(session: Session) -> int:
    """Mark retired versions whose bytes are gone; return how many."""
    shredded = registry.retired_and_shredded(session)
    for version in shredded:
        version.state = VersionState.SHREDDED
        log.append(session, "version.shredded", version=version.id)
    return len(shredded)

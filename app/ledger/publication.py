"""The publishing transaction, and what follows from it.

Version, certificate, obligations and the model's head change together or not at all.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func
from sqlalchemy.orm import Session

from app.delivery.publishing import repository as publishing
from app.domain.architectures import BaseDigest, Member
from app.domain.errors import (
    DraftOutdatedError,
    HeadMovedError,
    LeaseLostError,
    ScoreTooLowError,
    TargetNotMetError,
)
from app.domain.heads import boosted_trees
from app.domain.ids import new_id
from app.domain.policy import Policy
from app.domain.scores import why_too_low
from app.domain.states import Basis, FirstRelease, ObligationState, RunKind, RunState, VersionState
from app.evidence import log
from app.evidence.certificates.note import origin_of
from app.evidence.certificates.signing import StatementSigner, payload_from
from app.evidence.certificates.statement import (
    CertifyingPhase,
    Subject,
    Times,
    as_trained_statement,
    unlearning_statement,
)
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.trusted_keys import TrustedKey, TrustedKeys
from app.evidence.certificates.verification import check_place, check_statement
from app.evidence.certificates.weights_file import WeightsFile
from app.ledger import outbox, repository
from app.ledger.certificates import accounts, issuing
from app.ledger.certificates.accounts import Account, Lineage
from app.ledger.certificates.bundles import bundle_of
from app.ledger.certificates.reissue import exclude_before
from app.ledger.member_trainings import join
from app.ledger.obligations import meet
from app.ledger.runs import leave_nothing, require_held
from app.ledger.tables import RunRow
from app.ledger.training import begun_at_epoch, membership_of_run, unconcerned
from app.ledger.withdrawal import retire
from app.planning.tracking import Tracking, history_of_run
from app.registry import counts
from app.registry import repository as registry
from app.registry.membership import membership_of
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database import Database
from app.runtime.database.queries import database_time
from app.runtime.failpoints import reach
from app.storage.blobs import StoredBlob, adopt, doom
from app.storage.weights_content import WeightsContent

_GOING_ON = (RunKind.UNLEARN, RunKind.REFILL)
"""Kinds of runs that go on with a lineage and its head."""

Examiner = Callable[[Mapping[str, Any]], None]
"""Checks a statement or a bundle, as plain JSON values; raises ``ExpungeError`` to refuse it."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
        tensors_sha256: digest of its tensors alone, which differs wherever a weight does.
        phase: how the target was met; None for weights published as they were trained.
        base: the digest of the network's public tensors; None if it has none.
        statistics: the stored sums over the retained records, of a model that is made of them.
        members: of an ensemble, the digest of each active member, and whether this run trained it.
        provenance: what it can be computed again from, encrypted under the key of its weights.
        head_id: the version that an ensemble's run went on from; None for a training.
    """

    weights: StoredBlob
    tensors_sha256: str
    phase: CertifyingPhase | None
    evaluation: Mapping[str, Any]
    phase_seconds: Mapping[str, float]
    base: BaseDigest | None = None
    statistics: StoredBlob | None = None
    members: Mapping[int, tuple[str, bool]] = field(default_factory=dict)
    provenance: bytes | None = None
    head_id: str | None = None


def publish_checked(
    database: Database,
    signer: StatementSigner,
    *,
    run_id: str,
    fencing_token: int,
    result: RunResult,
    content: WeightsContent,
    may_go_on: Callable[[], None],
    drafts: bool = True,
) -> None:
    """Publish a run's result if the offline verifier accepts it.

    Repeating it after a commit whose answer was lost publishes nothing twice. ``may_go_on`` is
    asked before a draft that is outdated is made again. Without ``drafts`` the statement is checked
    while the run and its model are locked, which must be quick. Raises what ``publish`` raises, but
    for an outdated draft.
    """
    key = TrustedKey(signer.public_key)

    def examine(bundle: Mapping[str, Any]) -> None:
        origin = origin_of(bundle["log"]["checkpoint"].encode())
        trusted = TrustedKeys(origin, (key,)).to_bytes()
        check_place(bundle=json.dumps(bundle).encode(), trusted=trusted)

    def check(statement: Mapping[str, Any]) -> None:
        check_statement(payload_from(statement), weights=WeightsFile(content.opened()))

    while True:
        accept: Examiner = check
        if drafts:
            with database.transaction() as session:
                checked = draft(session, run_id=run_id, result=result)
            if checked is not None:
                check(checked)
            accept = the_same_as(checked)
        try:
            with database.transaction() as session:
                publish(
                    session,
                    signer,
                    run_id=run_id,
                    fencing_token=fencing_token,
                    result=result,
                    check=accept,
                    examine=examine,
                )
        except DraftOutdatedError:
            may_go_on()
        else:
            return


def the_same_as(checked: Mapping[str, Any] | None) -> Examiner:
    """Return what raises ``DraftOutdatedError`` for another statement than the checked one.

    It may have been certified later.
    """

    def timeless(statement: Mapping[str, Any]) -> dict[str, Any]:
        return {**statement, "predicate": {**statement["predicate"], "times": None}}

    def require(statement: Mapping[str, Any]) -> None:
        if checked is None or timeless(statement) != timeless(checked):
            raise DraftOutdatedError("another certificate of the model was issued meanwhile")

    return require


def draft(session: Session, *, run_id: str, result: RunResult) -> dict[str, Any] | None:
    """Return the statement that ``publish`` would sign now; takes no lock.

    Checking it may take seconds, and no lock should be held meanwhile. None if the run has been
    published, so that nothing is left to sign.
    """
    run = repository.run(session, run_id)
    if run.state == RunState.PUBLISHED:
        return None
    return _drafted(session, run, session.get_one(ModelRow, run.model_id), result).statement


def publish(
    session: Session,
    signer: StatementSigner,
    *,
    run_id: str,
    fencing_token: int,
    result: RunResult,
    check: Examiner,
    examine: Examiner,
) -> VersionRow:
    """Publish a run's result: version, certificate, obligations and head in one transaction.

    Calling it again after a commit whose answer was lost returns what was published.

    ``check`` receives the statement before it is signed: the offline verifier accepts it, or has
    accepted the same one as it was drafted. ``examine`` receives the certificate's bundle before
    the commit, while the log is locked: it checks what is new in it, the signature and its place in
    the log.

    Raises:
        DraftOutdatedError: as ``check`` raises it: draft the statement again.
        HeadMovedError: other members would have to be published: put them together again.
        RunFailedError: the network's base is not the model's.
        ScoreTooLowError: the result misses the policy's ``minimum_score``.
        TargetNotMetError: uncertified weights, where the policy does not ask for them, or the same
            weights as before, where the certificate would claim new noise.
    """
    run = repository.run(session, run_id, lock=True)
    if run.state == RunState.PUBLISHED and run.fencing_token == fencing_token:
        published = registry.version_of_run(session, run_id)
        if published is not None:
            return published
    require_held(run, fencing_token)
    model = session.get_one(ModelRow, run.model_id, with_for_update=True)
    previous = registry.head_version(session, model)
    drafted = _drafted(session, run, model, result)
    version = drafted.version
    claims_noise = result.phase is not None and result.phase.noise is not None
    if previous is not None and claims_noise and version.tensors_sha256 == previous.tensors_sha256:
        raise TargetNotMetError("the weights are those of the version before: nothing was added")
    check(drafted.statement)
    drafted.account.store()
    certificate = issuing.issue(
        session,
        signer,
        model=model,
        version_id=version.id,
        statement=drafted.statement,
        previous=drafted.last,
    )
    version.certificate_id = certificate.id
    log.examine_at_commit(
        session, lambda at_end: examine(bundle_of(at_end, certificate, signer=signer))
    )
    if previous is not None:
        retire(session, model, previous, reason=_retirement_reason(run, version))
    session.flush()
    session.add(version)
    adopt(session, result.weights)
    if version.statistics_blob_id is not None:
        adopt(session, version.statistics_blob_id)
    session.flush()
    publishing.wake(session, model.id)
    leave_nothing(session, run.id)  # of members, and what was reserved twice
    model.head_version_id = version.id
    model.is_spent = False
    model.tracking = _tracking(run, model, result.phase)
    model.trained_through = version.trained_through
    model.trained_after_epoch = version.trained_after_epoch
    _count(session, run, model)
    doom(session, model.imported_blob_id)
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
        certificate=certificate.id,
        sha256=version.sha256,
    )
    if run.kind == RunKind.TRAIN:
        exclude_before(session, signer, run, model=model, head=version)
    else:
        meet(session, repository.obligations_of_run(session, run.id), certificate.id)
    open_ones = repository.obligations_of_model(session, model.id, (ObligationState.OPEN,))
    if open_ones and run.kind != RunKind.REFILL:  # which they did not wait for
        outbox.post(session, outbox.Topic.SCHEDULE_MODEL, model.id)
    reach("before_commit")
    return version


def _count(session: Session, run: RunRow, model: ModelRow) -> None:
    """Keep the counts of the lineage that a version begins, or goes on with."""
    epoch = run.forget_epoch or 0
    if run.kind == RunKind.TRAIN:
        read = (counts.Counts(m, n, n, n, held, held) for m, n, held in run.counts or ())
        counts.begin(session, model, read, as_of=epoch)
    counts.note_read(session, model, begun_at_epoch=issuing.begun_at(model), run_epoch=epoch)


def _tracking(run: RunRow, model: ModelRow, phase: CertifyingPhase | None) -> dict[str, Any] | None:
    """Return what the lineage knows of its training after the run."""
    if phase is None or not phase.plan.is_tracked:
        return None
    plan = phase.plan
    return Tracking(
        plan.mechanism,
        begun_at_epoch=begun_at_epoch(model, run, plan),
        settings=plan.settings,
        training=plan.training,
        history=None if plan.history is None else history_of_run(plan, steps=phase.steps),
    ).to_json()


def _basis(session: Session, run: RunRow, model: ModelRow, number: int, result: RunResult) -> Basis:
    openly = Policy.from_json(model.policy).first_release is FirstRelease.AS_TRAINED
    if run.kind in _GOING_ON or (number > 1 and _are_tainted(session, run, model, number)):
        basis = Basis.UNLEARNED
    elif run.kind == RunKind.TRAIN and openly:
        basis = Basis.RELEASED_AS_TRAINED
    else:
        basis = Basis.CERTIFIED_RELEASE
    if (result.phase is None) != (basis is Basis.RELEASED_AS_TRAINED):
        raise TargetNotMetError("the run's result does not fit the policy's first release")
    return basis


def _account(session: Session, run: RunRow, model: ModelRow, version: VersionRow) -> Account:
    """Return what a version's certificate accounts for: all up to the epoch that it covers."""
    begun = 0 if run.kind == RunKind.TRAIN else issuing.begun_at(model)
    account = Account(session, Lineage.of(model, version), begun_at_epoch=begun)
    covered = accounts.covered_through(session, account.lineage.key)
    account.sweep(after_epoch=covered, through_epoch=version.covers_epoch)
    return account


def _are_tainted(session: Session, run: RunRow, model: ModelRow, number: int) -> bool:
    """Return whether a run's weights were uploaded and may have learned from forgotten records."""
    membership = membership_of(model)
    if run.kind != RunKind.CERTIFY or membership is None:
        return False
    account = Account(session, Lineage(model.id, model.dataset_id, number, membership))
    account.sweep(after_epoch=0, through_epoch=run.forget_epoch or 0)
    return account.totals.records > 0


def _new_version(
    session: Session, run: RunRow, model: ModelRow, number: int, basis: Basis, result: RunResult
) -> VersionRow:
    membership = membership_of_run(model, run)
    if membership is None:
        raise LeaseLostError("the run is over: its model has no weights any more")
    withheld = (
        Policy.from_json(model.policy).first_release is FirstRelease.NONE
        and basis is Basis.CERTIFIED_RELEASE
        and not registry.released_versions(session, model.id, limit=1)
        and not unconcerned(session, model.id, membership)
    )
    head = registry.head_version(session, model) if run.kind in _GOING_ON else None
    refilled = None if head is None or run.kind != RunKind.REFILL else head.covers_epoch
    return VersionRow(
        id=new_id("ver"),
        model_id=model.id,
        run_id=run.id,
        number=number,
        state=VersionState.PRIVATE if withheld else VersionState.CERTIFIED,
        blob_id=result.weights.id,
        statistics_blob_id=None if result.statistics is None else result.statistics.id,
        provenance=result.provenance,
        sha256=result.weights.sha256,
        tensors_sha256=result.tensors_sha256,
        size_bytes=result.weights.size_bytes,
        covers_epoch=run.forget_epoch if refilled is None else refilled,
        trained_through=membership.through,
        trained_after_epoch=membership.after_epoch,
        since_version=number if head is None else head.since_version,
        withheld=withheld,
        evaluation=dict(result.evaluation),
        members=_members(session, run, model, number, result),
    )


def _members(
    session: Session, run: RunRow, model: ModelRow, number: int, result: RunResult
) -> list[dict[str, Any]] | None:
    """Return what a version says of an ensemble's members; None if it is none.

    Raises:
        HeadMovedError: others than the result's would have to be active now.
        TargetNotMetError: a member that was trained is the same, or another one is not.
    """
    count = model.architecture.get("members")
    if count is None:
        return None
    trained = frozenset(place for place, (_, anew) in result.members.items() if anew)
    joined = join(session, model, run, trained, number=number)
    kept = frozenset(result.members.keys() - trained)
    if (joined.head_id, joined.trained, joined.kept) != (result.head_id, trained, kept):
        raise HeadMovedError("another version was published, or records were forgotten, meanwhile")
    if not joined.before and len(trained) < count:
        raise TargetNotMetError("a member of a new ensemble was not trained")
    # Without some of its records, what is grown and not drawn may come out as it was.
    drawn = model.architecture["of"]["name"] != boosted_trees.NAME
    stated = [Member(out_since=joined.out.get(place)) for place in range(count)]
    for place, (sha256, anew) in result.members.items():
        known = joined.before[place] if joined.before else None
        same = known is not None and known.sha256 == sha256
        if known is not None and (same and drawn if anew else not same):
            raise TargetNotMetError("a member was changed without a training, or not by it")
        stated[place] = Member(sha256, joined.number) if anew or known is None else known
    return [each.to_json() for each in stated]


@dataclass(frozen=True)
class _Draft:
    """A version before it is stored, and the statement about it before it is signed.

    ``last`` is the model's newest certificate so far.
    """

    version: VersionRow
    account: Account
    last: CertificateRow | None
    statement: dict[str, Any]


def _drafted(session: Session, run: RunRow, model: ModelRow, result: RunResult) -> _Draft:
    too_low = why_too_low(result.evaluation, Policy.from_json(model.policy).minimum_score)
    if too_low is not None:
        raise ScoreTooLowError(f"{too_low}, so it was not published")
    number = registry.next_number(session, model.id)
    basis = _basis(session, run, model, number, result)
    version = _new_version(session, run, model, number, basis, result)
    account = _account(session, run, model, version)
    last = issuing.last_certificate(session, model.id)
    issuing.require_same_base(session, model, last, result.base)
    now = database_time(session)  # which may have been set back since the run began
    subject = Subject(
        model=model.name,
        version=version.number,
        weights_sha256=version.sha256,
        times=Times(min(run.started_at or now, now), now),
        previous_certificate=issuing.digest_of(last),
        backbone=issuing.digest_of_backbone(session, model),
        base=result.base,
    )
    if result.phase is None:
        statement = as_trained_statement(subject=subject, evaluation=result.evaluation)
        return _Draft(version, account, last, statement)
    statement = unlearning_statement(
        basis=basis,
        subject=subject,
        coverage=account.coverage(through_epoch=version.covers_epoch),
        phase=result.phase,
        evaluation=result.evaluation,
        members=registry.members_of(version),
    )
    return _Draft(version, account, last, statement)


def _retirement_reason(run: RunRow, successor: VersionRow) -> str:
    reason = f"replaced by version {successor.number}"
    if run.kind == RunKind.UNLEARN:
        return f"{reason}, to meet forget requests"
    if run.kind == RunKind.REFILL:
        return f"{reason}, with members trained anew"
    if run.kind == RunKind.TRAIN:
        return f"{reason}, of a new training"
    return reason


def note_shredded(session: Session) -> int:
    """Mark retired versions whose bytes are gone; return how many."""
    shredded = registry.retired_and_shredded(session)
    for version in shredded:
        version.state = VersionState.SHREDDED
        log.append(session, "version.shredded", version=version.id)
    return len(shredded)

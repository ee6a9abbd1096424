"""Whether a model's present version covers requests as it was made, so that they need no run.

What must be covered is the union of all records of the lineage that are forgotten by now, whatever
became of what was owed for them. It is counted from the records themselves; the certificate's
commitments are counted from the requests. The offline verifier's code compares the two before
anything is signed. Where something does not fit, the requests wait for a run.

A version's file never changes. Each process reads it once, as far as the verifier asks about it;
what is kept is its digest, its header, and of numbers in F64 their norm and whether they lie on the
grid of their noise.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from app.domain.architectures import out_of
from app.domain.description import ModelDescription
from app.domain.errors import ExpungeError, VerificationError
from app.domain.plan import TrainingKind
from app.domain.policy import Policy
from app.domain.states import WAITING_OBLIGATION_STATES, VersionState
from app.evidence import log
from app.evidence.certificates.signing import StatementSigner, payload_from, statement_of
from app.evidence.certificates.statement import Times, covering_statement, restated
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.verification import check_statement
from app.evidence.certificates.weights_file import StoredTensor, WeightsFile, opened
from app.ledger import member_trainings, obligations, repository
from app.ledger.certificates import issuing
from app.ledger.certificates.accounts import Account, Lineage
from app.ledger.locked_models import LockedModel
from app.ledger.tables import ObligationRow
from app.planning.coverage import Capacity, Covered, capacity, coverage, may_cover
from app.planning.tracking import CurrentRelease, Tracking
from app.registry import counts
from app.registry import repository as registry
from app.registry.counts import Newest, Partition, partition_of
from app.registry.datasets import repository as datasets
from app.registry.membership import membership_of
from app.registry.tables import ModelRow, VersionRow
from app.runtime.failpoints import reach
from app.storage.blobs import Blobs


def capacities(session: Session) -> Iterator[tuple[str, Capacity]]:
    """Yield the names and capacities of the models whose releases cover later requests."""
    for model in registry.models(session):
        found = capacity_of(session, model)
        if found is not None:
            yield model.name, found


def capacity_of(session: Session, model: ModelRow) -> Capacity | None:
    """Return the capacity of a model's certified head; None where it covers no later request.

    The first answer for a head takes milliseconds, seconds where DP-SGD sampled its records.
    """
    present = present_of(session, model)
    return None if present is None else capacity(present, Policy.from_json(model.policy))


def present_of(session: Session, model: ModelRow) -> CurrentRelease | None:
    """Return a model's certified head, if its training is tracked, as its certificate counts it."""
    head = registry.head_version(session, model)
    if model.tracking is None or head is None or head.state != VersionState.CERTIFIED:
        return None
    tracking = Tracking.from_json(model.tracking)
    return issuing.present_of(tracking, head, issuing.stated_of(session, head))


class RememberedFile(WeightsFile):
    """What a verifier asks about a file, without the file."""

    def __init__(self, file: WeightsFile, *, grid: float | None) -> None:
        self._sha256 = file.sha256()
        self._tensors = file.tensors()
        self._description = file.description()
        self._grid = grid
        heads = [tensor for tensor in self._tensors.values() if tensor.dtype == "F64"]
        self._norms = {tensor: file.norm(tensor) for tensor in heads}
        self._on_grid = {
            tensor for tensor in heads if grid is not None and file.is_on_grid(tensor, grid)
        }

    def sha256(self) -> str:
        """Return the digest of the whole file, in hex."""
        return self._sha256

    def tensors(self) -> dict[str, StoredTensor]:
        """Return the tensors by name."""
        return self._tensors

    def description(self) -> ModelDescription | None:
        """Return what the file says of its model; None if it says nothing."""
        return self._description

    def is_on_grid(self, tensor: StoredTensor, grid: float) -> bool:
        """Return whether every number of a tensor is a multiple of its noise's grid."""
        if grid != self._grid:
            raise VerificationError("weights", "another grid than the version's")
        return tensor in self._on_grid

    def norm(self, tensor: StoredTensor) -> float:
        """Return the norm of an F64 tensor."""
        return self._norms[tensor]


class PresentWeights:
    """Remembers the files of the versions that were asked about last."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._known: Newest[str, RememberedFile] = Newest()

    def knows(self, version: VersionRow) -> bool:
        """Return whether a version's file need not be read any more."""
        return version.id in self._known

    def of_version(self, version: VersionRow, *, grid: float | None) -> RememberedFile:
        """Return a version's file, whose certificate states this grid.

        Raises:
            ExpungeError: it cannot be read, or it is not the version's.
        """
        known = self._known.get(version.id)
        if known is None:
            with opened(self._blobs.read(version.blob_id)) as file:
                known = self._known.add(version.id, RememberedFile(file, grid=grid))
        if known.sha256() != version.sha256:
            raise VerificationError("digest", "the stored weights are not the version's")
        return known


# Each of them is read again for each new request, until a run takes them on.
_MOST_UNMET = 1000
_log = logging.getLogger("expunge.present_release")


@dataclass(frozen=True)
class Covering:
    """The certificate to sign: a model's present version covers what requests ask for.

    Attributes:
        account: the lineage's trees, with these requests.
        statement: has passed the verifier's code.
        through_epoch: the epoch that the version covers from now on.
        tracking: what the lineage remembers from now on, if it is tracked and that changes.
        previous: the model's newest certificate so far.
        unmet: what the model owes to earlier requests, which this certificate settles, too.
    """

    model: ModelRow
    head: VersionRow
    account: Account
    statement: dict[str, Any]
    previous: CertificateRow | None
    through_epoch: int
    tracking: Tracking | None = None
    unmet: Sequence[ObligationRow] = ()

    def issue(self, session: Session, signer: StatementSigner) -> CertificateRow:
        """Issue the certificate, and have the lineage remember what it covers."""
        model, head = self.model, self.head
        self.account.store()
        certificate = issuing.issue(
            session,
            signer,
            model=model,
            version_id=head.id,
            statement=self.statement,
            previous=self.previous,
        )
        session.flush()
        if self.through_epoch > head.covers_epoch:
            head.covers_epoch, head.certificate_id = self.through_epoch, certificate.id
            model.tracking = None if self.tracking is None else self.tracking.to_json()
            log.append(
                session,
                "version.covers",
                version=head.id,
                model=model.id,
                certificate=certificate.id,
                covers_epoch=head.covers_epoch,
            )
        obligations.meet(session, self.unmet, certificate.id)
        reach("at_once")
        return certificate


class PresentReleases:
    """Answers for all models of a process, and remembers what never changes of them."""

    def __init__(self, blobs: Blobs) -> None:
        self._weights = PresentWeights(blobs)

    def warm(self, session: Session, dataset: str) -> None:
        """Read beforehand, without a lock, what answers for a dataset's models will need."""
        for model, head in registry.tracked_heads(session, dataset):
            policy, tracking = _terms(model)
            if not may_cover(tracking, policy):
                continue
            if tracking.training is TrainingKind.PRIVATE:  # takes seconds for a new policy
                coverage(CurrentRelease(tracking, head.number), policy, {})
            if self._weights.knows(head):
                continue
            try:
                self._weights.of_version(head, grid=_grid(issuing.stated_of(session, head)))
                self._partition(session, model, tracking)
            except ExpungeError as error:  # the answer itself meets it again
                _warn(model, error)

    def again(
        self, session: Session, locked: LockedModel, request_ids: Sequence[str], *, now: datetime
    ) -> Covering | None:
        """Return the head's own statement with more requests, whose records it covers already.

        None where it would not be true of these.
        """
        model, head = locked.model, locked.head
        if head is None:
            return None
        account = _account(session, model, head)
        account.add(request_ids)
        previous, stated = _newest(session, head)
        try:
            statement = restated(
                stated,
                coverage=account.coverage(through_epoch=head.covers_epoch),
                previous_certificate=issuing.digest_of(previous),
                times=Times(started_at=now, certified_at=now),
            )
            check_statement(payload_from(statement), weights=None)
        except ExpungeError as error:
            _warn(model, error)
            return None
        return Covering(model, head, account, statement, previous, head.covers_epoch)

    def more(
        self,
        session: Session,
        locked: LockedModel,
        *,
        through_epoch: int,
        excluded: Sequence[Sequence[str]],
        now: datetime,
    ) -> Covering | None:
        """Return a statement of the present version about all that is forgotten by now.

        The caller holds the lock of the dataset, too, whose newest epoch is ``through_epoch``. None
        where the requests need a run. A run that is going publishes what it fixed when it began, so
        nothing is answered beside one.

        The new requests that are ``excluded`` get certificates of their own, those of each list
        together.
        """
        model, head = locked.model, locked.head
        if head is None or model.imported_blob_id or not (model.tracking or head.members):
            return None
        if head.state != VersionState.CERTIFIED or locked.run is not None:
            return None
        try:
            return self._more(session, model, head, through_epoch, excluded, now)
        except ExpungeError as error:
            _warn(model, error)
            return None

    def _more(
        self,
        session: Session,
        model: ModelRow,
        head: VersionRow,
        through_epoch: int,
        excluded: Sequence[Sequence[str]],
        now: datetime,
    ) -> Covering | None:
        policy = Policy.from_json(model.policy)
        tracking = None if model.tracking is None else Tracking.from_json(model.tracking)
        if tracking is None:
            named = member_trainings.concerned(
                session, model, after=head.covers_epoch, through=None
            )
            if not named <= out_of(registry.members_of(head)).keys():
                return None
        elif not may_cover(tracking, policy):
            return None
        unmet = repository.obligations_of_model(
            session, model.id, WAITING_OBLIGATION_STATES, limit=_MOST_UNMET + 1
        )
        if len(unmet) > _MOST_UNMET or counts.is_emptied(session, model):
            return None
        previous, stated = _newest(session, head)
        found: Covered | None = None
        if tracking is not None:
            present = issuing.present_of(tracking, head, stated)
            counted = self._forgotten_since(session, model, head, tracking)
            covered = coverage(present, policy, counted)
            if not isinstance(covered, Covered):
                return None
            found = covered
        account = _account(session, model, head)
        for request_ids in excluded:  # their commitments have to be adjacent
            account.add(request_ids)
        account.sweep(after_epoch=head.covers_epoch, through_epoch=through_epoch)
        states: Mapping[str, Any] = {
            "coverage": account.coverage(through_epoch=through_epoch),
            "previous_certificate": issuing.digest_of(previous),
            "times": Times(started_at=now, certified_at=now),
        }
        if found is None:  # every member that learned from the records is out
            statement, weights = restated(stated, **states), None
        else:
            target, mechanism = policy.target, found.mechanism
            statement = covering_statement(stated, mechanism=mechanism, **target, **states)
            weights = self._weights.of_version(head, grid=_grid(stated))
        check_statement(payload_from(statement), weights=weights)
        return Covering(
            model,
            head,
            account,
            statement,
            previous,
            through_epoch,
            tracking=None if found is None else found.tracking,
            unmet=unmet,
        )

    def _forgotten_since(
        self, session: Session, model: ModelRow, head: VersionRow, tracking: Tracking
    ) -> Counter[int]:
        """Count, by batch, the records of a lineage that are forgotten and not covered yet.

        A lineage without batches counts all of them in one.
        """
        membership = membership_of(model)
        partition = self._partition(session, model, tracking)
        found: Counter[int] = Counter()
        for record in datasets.forgotten_since(session, model.dataset_id, head.covers_epoch):
            if membership is not None and membership.touched_by(record):
                found[0 if partition is None else partition.batch_of(record.record_key)] += 1
        return found

    def _partition(self, session: Session, model: ModelRow, tracking: Tracking) -> Partition | None:
        if tracking.history is None:
            return None
        return partition_of(
            session,
            model,
            batch_size=tracking.history.recipe.batch_size,
            begun_at_epoch=tracking.begun_at_epoch,
        )


def _terms(model: ModelRow) -> tuple[Policy, Tracking]:
    return Policy.from_json(model.policy), Tracking.from_json(model.tracking or {})


def _newest(session: Session, head: VersionRow) -> tuple[CertificateRow | None, dict[str, Any]]:
    """Return the newest certificate of a head's model, and the newest statement about the head."""
    newest = issuing.last_certificate(session, head.model_id)
    if newest is not None and newest.id == head.certificate_id:
        return newest, statement_of(newest.envelope)
    return newest, issuing.stated_of(session, head)


def _account(session: Session, model: ModelRow, head: VersionRow) -> Account:
    lineage, begun = Lineage.of(model, head), issuing.begun_at(model)
    return Account(session, lineage, begun_at_epoch=begun)


def _grid(stated: Mapping[str, Any]) -> float | None:
    """Return the grid of a version's noise, if it states one."""
    noise = stated["predicate"].get("mechanism", {}).get("noise")
    return None if noise is None else noise["grid"]


def _warn(model: ModelRow, error: ExpungeError) -> None:
    _log.warning("requests to %s are not certified at once: %s", model.id, error)

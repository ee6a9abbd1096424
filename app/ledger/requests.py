"""Forget requests: accepted in one transaction, cancelled, tried again, completed."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from app import log
from app.backbones.use import digest_of
from app.callbacks.events import Callbacks
from app.certificates.signing import StatementSigner
from app.certificates.statement import Subject, Times, exclusion_statement
from app.datasets import digests
from app.datasets import repository as datasets
from app.datasets.pseudonyms import Pseudonyms
from app.datasets.service import Records
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import ConflictError, ExpungeError
from app.domain.ids import new_id
from app.domain.states import Basis, ObligationState, RequestState
from app.ledger import certifying, obligations, outbox, reissue, repository
from app.ledger.accepting import Acceptance, Taken
from app.ledger.demands import Call, ForgetDemand, hashed
from app.ledger.tables import ForgetRequestRow, ObligationRow
from app.ledger.transitions import enter
from app.log import actor
from app.registry.tables import ModelRow, VersionRow
from app.storage.blobs import is_being_written


def utc_now() -> datetime:
    """Return the present moment, with its time zone."""
    return datetime.now(UTC)


class ForgetRequests:
    """The service behind ``/v1/forget-requests``."""

    def __init__(
        self,
        *,
        pseudonyms: Pseudonyms,
        signer: StatementSigner,
        records: Records,
        callbacks: Callbacks,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._pseudonyms = pseudonyms
        self._signer = signer
        self._records = records
        self._acceptance = Acceptance(pseudonyms, callbacks)
        self._clock = clock

    def submit(
        self, session: Session, demand: ForgetDemand, *, api_key_id: str
    ) -> tuple[ForgetRequestRow, bool]:
        """Accept a request: from the commit on, no run reads its records.

        Returns:
            The request, and whether it is new (False: an earlier answer is replayed).

        Raises:
            NotFoundError: the dataset does not exist.
            UnknownRecordsError: ids that the dataset never held.
            InvalidInputError: no ids, a reused key with another body, or a bad callback.
        """
        call = Call(demand, api_key_id=api_key_id, actor=actor.current())
        (taken,) = self.submit_all(session, [call])
        if isinstance(taken, ExpungeError):
            raise taken
        return repository.request(session, taken.request_id), taken.is_new

    def submit_all(self, session: Session, calls: Sequence[Call]) -> list[Taken | ExpungeError]:
        """Accept requests, each as ``submit`` does; a refused one has its error in its place."""
        answers = self._acceptance.take(session, calls, now=self._clock())
        for taken in answers:
            if isinstance(taken, Taken) and taken.is_new and not taken.is_plain:
                with actor.acting_as(taken.actor):
                    self._settle(session, taken)
        return answers

    def _settle(self, session: Session, taken: Taken) -> None:
        """Certify what can be certified at once."""
        request = repository.request(session, taken.request_id)
        for settled in taken.settled:
            # The model has been locked since the decision, and its head with it.
            model = session.get_one(ModelRow, settled.model_id, populate_existing=True)
            head = session.get_one(VersionRow, model.head_version_id)
            if settled.basis == Basis.UNLEARNED:
                certificate_id = self._certify_again(session, request, model, head)
            else:
                certificate_id = self._certify_exclusion(session, request, model, head)
            obligation = ObligationRow(
                id=new_id("ob"),
                request_id=request.id,
                model_id=model.id,
                state=ObligationState.CERTIFIED,
                basis=settled.basis,
                certificate_id=certificate_id,
            )
            session.add(obligation)
            obligations.record(session, obligation)
        obligations.settle_request(session, request)

    def _certify_again(
        self, session: Session, request: ForgetRequestRow, model: ModelRow, head: VersionRow
    ) -> str:
        certificate = reissue.certify_again(
            session, self._signer, request, model=model, head=head, now=self._clock()
        )
        session.flush()
        return certificate.id

    def external_key(self, external_id: str | None) -> bytes | None:
        """Return what is stored of a caller's own id of a request; None of None."""
        return hashed(self._pseudonyms.external_id, external_id)

    def receipt_salt(self, request_id: str) -> bytes:
        """Return what a request's sender needs to find its records among the commitments."""
        return self._pseudonyms.receipt_salt(request_id)

    def _certify_exclusion(
        self,
        session: Session,
        request: ForgetRequestRow,
        model: ModelRow,
        head: VersionRow,
    ) -> str:
        now = self._clock()
        statement = exclusion_statement(
            subject=Subject(model=model.name, version=head.number, weights_sha256=head.sha256),
            coverage=certifying.accounted_in(session, request.id).coverage(),
            previous_certificate=certifying.previous_digest(session, model.id),
            times=Times(started_at=request.received_at, certified_at=now),
            backbone=digest_of(session, ArchitectureSpec.from_json(model.architecture)),
        )
        certificate = certifying.issue(
            session,
            self._signer,
            model=model,
            version_id=head.id,
            basis=Basis.EXCLUDED_FROM_TRAINING,
            statement=statement,
        )
        session.flush()
        return certificate.id

    def erase(self, session: Session, request_id: str, *, wait: bool) -> bool:
        """Erase what is stored of a certified request's records; False if it is not certified.

        The objects that held them are shredded by a sweep after the commit. Without ``wait``, a
        request that another transaction has locked counts as not certified.
        """
        request = repository.certified_request(session, request_id, wait=wait)
        if request is None:
            return False
        seqs = [record.seq for record in repository.records_of(session, request.id)]
        erased = self._records.erase(session, seqs)
        if erased:
            log.append(
                session,
                "records.erased",
                request=request.id,
                dataset=request.dataset_id,
                records=erased,
            )
        return True

    def complete(self, session: Session, request_id: str) -> bool:
        """Complete a certified request; its dataset was swept after its records were erased.

        False if it is not certified, or if it has to wait: a writer that began before the request
        may still hold its records, though no transaction could publish them any more.
        """
        request = repository.certified_request(session, request_id, wait=True)
        if request is None or is_being_written(
            session, request.dataset_id, since=request.received_at
        ):
            return False
        request.completed_at = self._clock()
        completed_at = request.completed_at.astimezone(UTC).isoformat()
        enter(session, request, RequestState.COMPLETED, completed_at=completed_at)
        return True

    def cancel(self, session: Session, request_id: str, *, restore: bool) -> ForgetRequestRow:
        """Cancel a request that no run has started on.

        Its records stay out of all training unless ``restore`` brings back those that no other
        request names. For every existing model they then count as new records: models that were
        trained on them before unlearn them with their next run.

        Raises:
            NotFoundError: the request does not exist.
            ConflictError: it is not in the state accepted any more.
        """
        dataset_id = repository.request(session, request_id).dataset_id
        # Neither a run that begins nor a new request may see this half finished.
        dataset = datasets.lock_dataset(session, dataset_id)
        request = repository.request(session, request_id, lock=True)
        if request.state != RequestState.ACCEPTED:
            raise ConflictError(f"the request is {request.state}; it can no longer be cancelled")
        request.state = RequestState.CANCELLED  # before records are restored, which looks at it
        for obligation in repository.obligations_of_request(session, request.id):
            if obligation.state == ObligationState.OPEN:
                obligations.enter(session, obligation, ObligationState.CANCELLED)
        facts: dict[str, Any] = {"restored": 0}
        if restore:
            dataset.forget_epoch += 1
            restored = repository.restore_records(session, request, epoch=dataset.forget_epoch)
            facts = {"restored": restored, "returned_at": dataset.forget_epoch}
            facts |= {"dataset": dataset.id} | digests.marks_of(
                session, dataset.id, request.forget_epoch
            )
            facts |= digests.returns_of(session, dataset.id, request.forget_epoch)
        enter(session, request, RequestState.CANCELLED, **facts)
        return request

    def retry(self, session: Session, request_id: str) -> ForgetRequestRow:
        """Give a failed request's obligations another run.

        Raises:
            NotFoundError: the request does not exist.
            ConflictError: it has not failed.
        """
        # Models before requests: the order in which runs take their locks.
        models = repository.lock_models_of_request(session, request_id)
        request = repository.request(session, request_id, lock=True)
        if request.state != RequestState.FAILED:
            raise ConflictError(f"the request is {request.state}; only a failed one can be retried")
        owed = repository.obligations_of_request(session, request.id)
        obligations.reopen(session, owed, ObligationState.FAILED)
        for model in models:
            outbox.post(session, outbox.Topic.SCHEDULE_MODEL, model.id)
        obligations.settle_request(session, request)
        return request

"""Forget requests once they are accepted: cancelled, tried again, completed."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app.access.pseudonyms import Pseudonyms
from app.domain.errors import ConflictError
from app.domain.states import ObligationState, RequestState
from app.evidence import log
from app.ledger import obligations, outbox, repository
from app.ledger.tables import ForgetRequestRow
from app.ledger.transitions import enter
from app.registry.datasets import digests
from app.registry.datasets import repository as datasets
from app.registry.datasets.service import Records
from app.runtime.database.queries import database_time
from app.storage.blobs import is_being_written


@dataclass(frozen=True, kw_only=True)
class ForgetRequests:
    """The service behind ``/v1/forget-requests``, except for accepting them."""

    pseudonyms: Pseudonyms
    records: Records

    def receipt_salt(self, request_id: str) -> bytes:
        """Return what a request's sender needs to find its records among the commitments."""
        return self.pseudonyms.receipt_salt(request_id)

    def erase(self, session: Session, request_id: str, *, wait: bool) -> bool:
        """Erase what is stored of a certified request's records; False if it is not certified.

        The objects that held them are shredded by a sweep after the commit. Without ``wait``, a
        request that another transaction has locked counts as not certified.
        """
        request = repository.certified_request(session, request_id, wait=wait)
        if request is None:
            return False
        seqs = [record.seq for record in repository.records_of(session, request.id)]
        erased = self.records.erase(session, seqs)
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

        False if it is not certified, or if it has to wait: a writer that began before they were
        erased may still hold its records, though no transaction could publish them any more.
        """
        request = repository.certified_request(session, request_id, wait=True)
        if request is None:
            return False
        # It may have waited for its dataset's lock.
        erased_at = repository.erased_at(session, request_id)
        since = max(moment for moment in (request.received_at, erased_at) if moment is not None)
        if is_being_written(session, request.dataset_id, since=since):
            return False
        request.completed_at = database_time(session)
        enter(session, request, RequestState.COMPLETED)
        return True

    def cancel(self, session: Session, request_id: str, *, restore: bool) -> ForgetRequestRow:
        """Cancel a request that no run has started on.

        Its records stay out of later trainings unless ``restore`` brings back those that no other
        request names. For every existing model they then count as new records: models that were
        trained on them before unlearn them with their next run.
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
            marked = digests.marked_now(session, dataset.id, request.forget_epoch)
            facts = {"restored": restored, "dataset": dataset.id, "rows": marked}
        enter(session, request, RequestState.CANCELLED, **facts)
        return request

    def retry(self, session: Session, request_id: str) -> ForgetRequestRow:
        """Give a failed request's obligations another run."""
        # Models before requests: the order in which runs take their locks.
        models = repository.lock_models_of_request(session, request_id)
        request = repository.request(session, request_id, lock=True)
        if request.state != RequestState.FAILED:
            raise ConflictError(f"the request is {request.state}; only a failed one can be retried")
        owed = repository.obligations_of_request(session, request.id)
        obligations.reopen(session, owed, ObligationState.FAILED)
        for model in models:
            outbox.post(session, outbox.Topic.SCHEDULE_MODEL, model.id)
        obligations.settle_requests(session, [request])
        return request

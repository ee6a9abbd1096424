"""Forget requests once they are accepted: cancelled, tried again, completed."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.access.pseudonyms import Pseudonyms
from app.domain.errors import ConflictError
from app.domain.states import ObligationState, RequestState
from app.evidence import log
from app.ledger import obligations, outbox, repository
from app.ledger.tables import ForgetRequestRow
from app.ledger.transitions import enter
from app.ledger.views.request_views import RequestView
from app.registry.datasets import repository as datasets
from app.registry.datasets.service import Records
from app.runtime.database.queries import database_time
from app.storage.blobs import is_being_written


@dataclass(frozen=True, kw_only=True)
class ForgetRequests:
    """The service behind ``/v1/forget-requests``, except for accepting them."""

    pseudonyms: Pseudonyms
    records: Records

    def receipt_salt(self, request: ForgetRequestRow | RequestView) -> bytes | None:
        """Return what a request's sender needs to find its records among the commitments.

        None once the evidence is destroyed.
        """
        if request.salt is None:
            return None
        return self.pseudonyms.receipt_salt(request.id, request.salt)

    def erase(self, session: Session, request_id: str, *, wait: bool) -> bool:
        """Erase what is stored of a request's records; False if a model has not forgotten them.

        The objects that held them are shredded by a sweep after the commit. Without ``wait``, a
        request that another transaction has locked is left for later: False.
        """
        request = repository.erasable_request(session, request_id, wait=wait)
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
        """Complete a request; its dataset was swept after its records were erased.

        A cancelled one stays cancelled. False if it has to wait: a writer that began before they
        were erased may still hold its records, though no transaction could publish them any more.
        """
        request = repository.erasable_request(session, request_id, wait=True)
        if request is None:
            return False
        # It may have waited for its dataset's lock.
        erased_at = repository.erased_at(session, request_id)
        since = max(moment for moment in (request.received_at, erased_at) if moment is not None)
        if is_being_written(session, request.dataset_id, since=since):
            return False
        request.completed_at = database_time(session)
        if request.state == RequestState.CANCELLED:
            log.append(session, "request.erased", request=request.id)
        else:
            enter(session, request, RequestState.COMPLETED)
        return True

    def cancel(self, session: Session, request_id: str) -> ForgetRequestRow:
        """Cancel a request that no run has started on: its sender gives up its answer.

        Its records stay forgotten. What the models owe for them stays due, and ends with their
        certificates; then the records are erased.
        """
        # A lock of the dataset, as all have who lock requests.
        datasets.lock_dataset(session, repository.request(session, request_id).dataset_id)
        request = repository.request(session, request_id, lock=True)
        if request.forget_epoch is None:
            raise ConflictError(f"the request is {request.state}; what is not accepted is refused")
        if request.state != RequestState.ACCEPTED:
            raise ConflictError(f"the request is {request.state}; it can no longer be cancelled")
        enter(session, request, RequestState.CANCELLED)
        return request

    def retry(self, session: Session, request_id: str) -> ForgetRequestRow:
        """Give a request's failed obligations another run."""
        # Models before requests: the order in which runs take their locks.
        models = repository.lock_models_of_request(session, request_id)
        request = repository.request(session, request_id, lock=True)
        owed = repository.obligations_of_request(session, request.id)
        if all(obligation.state != ObligationState.FAILED for obligation in owed):
            raise ConflictError(f"the request is {request.state}; only a failed one can be retried")
        obligations.reopen(session, owed, ObligationState.FAILED)
        for model in models:
            outbox.post(session, outbox.Topic.SCHEDULE_MODEL, model.id)
        obligations.settle_requests(session, [request])
        return request

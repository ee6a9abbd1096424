"""Forget requests: accepted in one transaction, cancelled, tried again, completed."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from app.backbones.use import digest_of
from app.callbacks.events import Callbacks
from app.certificates.signing import StatementSigner
from app.certificates.statement import Subject, Times, exclusion_statement
from app.datasets import repository as datasets
from app.datasets.pseudonyms import Pseudonyms
from app.datasets.service import Records
from app.datasets.tables import DatasetRow, RecordRow
from app.domain.architecture import ArchitectureSpec
from app.domain.commitments import SALT_BYTES, record_commitment, subject_commitment
from app.domain.errors import ConflictError, InvalidInputError, UnknownRecordsError
from app.domain.ids import new_id
from app.domain.policy import THIRTY_DAYS_S, Policy
from app.domain.states import Basis, ObligationState, RequestState
from app.ledger import certifying, log, outbox, repository, restating
from app.ledger.obligations import reopen_failed, settle_request
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow, ObligationRow
from app.ledger.transitions import enter
from app.registry import repository as registry
from app.registry.membership import membership_of
from app.registry.tables import ModelRow, VersionRow

MAX_REPORTED_UNKNOWN = 20


def utc_now() -> datetime:
    """Return the present moment, with its time zone."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class ForgetDemand:
    """What a caller asks for.

    Attributes:
        dataset: the dataset's name.
        record_ids, subject_ids: owners' ids; at least one altogether.
        external_id: the caller's own id of the request; unique per caller, replays the answer.
        idempotency_key: replays the answer too. Of both only keyed hashes are stored.
        status_callback_urls: whom to tell of every change of the request's state.
        subject_request_id: the data subject request that this one belongs to.
    """

    dataset: str
    record_ids: Sequence[str] = ()
    subject_ids: Sequence[str] = ()
    external_id: str | None = None
    idempotency_key: str | None = None
    status_callback_urls: Sequence[str] = ()
    subject_request_id: str | None = None


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
        self._callbacks = callbacks
        self._clock = clock

    def submit(
        self, session: Session, demand: ForgetDemand, *, api_key_id: str
    ) -> tuple[ForgetRequestRow, bool]:
        """Accept a request: from the commit on, no run reads its records.

        Returns:
            The request, and whether it is new (False: an earlier answer is replayed).

        Raises:
            NotFoundError: there is no such dataset.
            UnknownRecordsError: ids that the dataset never held.
            InvalidInputError: no ids, a reused key with another body, or a bad callback.
        """
        if not demand.record_ids and not demand.subject_ids:
            raise InvalidInputError("name at least one of record_ids and subject_ids")
        callback_urls = self._callbacks.check(demand.status_callback_urls)
        dataset = datasets.dataset_named(session, demand.dataset, lock=True)
        digest = self._digest(dataset, demand)
        external_key = self.external_key(demand.external_id)
        idempotency_key = _pseudonym(self._pseudonyms.idempotency_key, demand.idempotency_key)
        earlier = repository.earlier_requests(
            session,
            api_key_id,
            external_key=external_key,
            idempotency_key=idempotency_key,
        )
        if any(request.request_digest != digest for request in earlier):
            raise InvalidInputError(
                "external_id or Idempotency-Key was used before with another body"
            )
        if earlier:
            return earlier[0], False
        salt = os.urandom(SALT_BYTES)
        commitments = self._resolve(session, dataset, demand, salt)
        dataset.forget_epoch += 1
        models = registry.models_of_dataset(session, dataset.id)
        now = self._clock()
        request = ForgetRequestRow(
            id=new_id("fr"),
            dataset_id=dataset.id,
            api_key_id=api_key_id,
            external_key=external_key,
            idempotency_key=idempotency_key,
            request_digest=digest,
            state=RequestState.ACCEPTED,
            salt=salt,
            forget_epoch=dataset.forget_epoch,
            record_count=len(commitments),
            received_at=now,
            due_at=now + timedelta(seconds=_deadline_s(models)),
            subject_request_id=demand.subject_request_id,
            callback_count=len(callback_urls),
        )
        session.add(request)
        session.flush()
        session.add_all(
            ForgottenRecordRow(request_id=request.id, record_seq=seq, commitment=commitment)
            for seq, (_, commitment) in commitments.items()
        )
        self._callbacks.register(
            session, callback_urls, api_key_id=api_key_id, request_id=request.id
        )
        enter(session, request, RequestState.ACCEPTED, records=len(commitments))
        records = [record for record, _ in commitments.values()]
        datasets.mark_forgotten(session, list(commitments), epoch=dataset.forget_epoch)
        for model in models:
            self._oblige(session, request, model, records)
        settle_request(session, request)
        return request, True

    def external_key(self, external_id: str | None) -> bytes | None:
        """Return what is stored of a caller's own id of a request; None of None."""
        return _pseudonym(self._pseudonyms.external_id, external_id)

    def _digest(self, dataset: DatasetRow, demand: ForgetDemand) -> bytes:
        body: list[object] = [
            sorted(set(demand.record_ids)),
            sorted(set(demand.subject_ids)),
            demand.external_id,
        ]
        if demand.status_callback_urls:
            body.append(sorted(set(demand.status_callback_urls)))
        return self._pseudonyms.upload(dataset.id, json.dumps(body).encode())

    def _resolve(
        self, session: Session, dataset: DatasetRow, demand: ForgetDemand, salt: bytes
    ) -> dict[int, tuple[RecordRow, bytes]]:
        """Return each record that the demand names, with its commitment, by sequence number."""
        record_ids = {self._pseudonyms.record(dataset.id, i): i for i in demand.record_ids}
        subject_ids = {self._pseudonyms.subject(dataset.id, i): i for i in demand.subject_ids}
        found = datasets.records_by_key(
            session, dataset.id, record_keys=record_ids, subject_keys=subject_ids
        )
        resolved: dict[int, tuple[RecordRow, bytes]] = {}
        per_subject: dict[bytes, list[RecordRow]] = {}
        for record in found:
            if record.record_key in record_ids:
                commitment = record_commitment(salt=salt, record_id=record_ids[record.record_key])
                resolved[record.seq] = (record, commitment)
            if record.subject_key in subject_ids:
                per_subject.setdefault(record.subject_key, []).append(record)
        for subject_key, records in per_subject.items():
            distinct = sorted({record.seq: record for record in records}.items())
            for ordinal, (seq, record) in enumerate(distinct):
                commitment = subject_commitment(
                    salt=salt, subject_id=subject_ids[subject_key], ordinal=ordinal
                )
                resolved.setdefault(seq, (record, commitment))
        known = {record.record_key for record in found} | set(per_subject)
        unknown = [i for key, i in (record_ids | subject_ids).items() if key not in known]
        if unknown:
            raise UnknownRecordsError(len(unknown), unknown[:MAX_REPORTED_UNKNOWN])
        return resolved

    def _oblige(
        self,
        session: Session,
        request: ForgetRequestRow,
        model: ModelRow,
        records: Sequence[RecordRow],
    ) -> None:
        """Note what a model owes a request, and settle at once what can be."""
        membership = membership_of(model)
        if membership is None:
            return
        included = [
            record
            for record in records
            if membership.includes(seq=record.seq, forgotten_epoch=record.forgotten_epoch)
        ]
        touched = [
            record.forgotten_epoch or request.forget_epoch
            for record in included
            if membership.touched_by(record)
        ]
        head = registry.head_version(session, model)
        if touched:
            obligation = _obligation(request, model, Basis.UNLEARNED)
            if head is not None and max(touched) <= head.covers_epoch:
                certificate = restating.certify_again(
                    session, self._signer, request, model=model, head=head, now=self._clock()
                )
                session.flush()
                obligation.state = ObligationState.CERTIFIED
                obligation.certificate_id = certificate.id
            else:
                delay_s = Policy.from_json(model.policy).window_s
                outbox.post(session, outbox.Topic.SCHEDULE_MODEL, model.id, delay_s=delay_s)
            session.add(obligation)
        elif included and head is not None:
            obligation = _obligation(request, model, Basis.EXCLUDED_FROM_TRAINING)
            obligation.state = ObligationState.CERTIFIED
            obligation.certificate_id = self._certify_exclusion(session, request, model, head)
            session.add(obligation)

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

    def complete(self, session: Session, request_id: str) -> bool:
        """Erase a certified request's records and complete it; False if it was not certified.

        The old shards are shredded by the blobs' next sweep after the commit.
        """
        request = repository.request(session, request_id, lock=True)
        if request.state != RequestState.CERTIFIED:
            return False
        seqs = [record.seq for record in repository.records_of(session, request.id)]
        erased = self._records.erase(session, seqs)
        request.completed_at = self._clock()
        log.append(session, "records.erased", request=request.id, records=erased)
        enter(session, request, RequestState.COMPLETED)
        return True

    def cancel(self, session: Session, request_id: str, *, restore: bool) -> ForgetRequestRow:
        """Cancel a request that no run has taken up.

        Its records stay out of all training unless ``restore`` brings back those that no other
        request names.

        Raises:
            NotFoundError: there is no such request.
            ConflictError: it is not merely accepted any more.
        """
        dataset_id = repository.request(session, request_id).dataset_id
        # Neither a run that begins nor a new request may see this half done.
        session.get_one(DatasetRow, dataset_id, with_for_update=True)
        request = repository.request(session, request_id, lock=True)
        if request.state != RequestState.ACCEPTED:
            raise ConflictError(f"the request is {request.state}; it can no longer be cancelled")
        request.state = RequestState.CANCELLED  # before records are restored, which looks at it
        for obligation in repository.obligations_of_request(session, request.id):
            if obligation.state == ObligationState.OPEN:
                obligation.state = ObligationState.CANCELLED
        restored = repository.restore_records(session, request) if restore else 0
        enter(session, request, RequestState.CANCELLED, restored=restored)
        return request

    def retry(self, session: Session, request_id: str) -> ForgetRequestRow:
        """Give a failed request's obligations another run.

        Raises:
            NotFoundError: there is no such request.
            ConflictError: it has not failed.
        """
        # Models before requests: the order in which runs take their locks.
        models = repository.lock_models_of_request(session, request_id)
        request = repository.request(session, request_id, lock=True)
        if request.state != RequestState.FAILED:
            raise ConflictError(f"the request is {request.state}; only a failed one can be retried")
        reopen_failed(repository.obligations_of_request(session, request.id))
        for model in models:
            outbox.post(session, outbox.Topic.SCHEDULE_MODEL, model.id)
        settle_request(session, request)
        return request


def _pseudonym(of: Callable[[str], bytes], raw: str | None) -> bytes | None:
    return None if raw is None else of(raw)


def _obligation(request: ForgetRequestRow, model: ModelRow, basis: Basis) -> ObligationRow:
    return ObligationRow(
        id=new_id("ob"),
        request_id=request.id,
        model_id=model.id,
        state=ObligationState.OPEN,
        basis=basis,
    )


def _deadline_s(models: Sequence[ModelRow]) -> float:
    deadlines = [Policy.from_json(model.policy).deadline_s for model in models]
    return min(deadlines, default=THIRTY_DAYS_S)

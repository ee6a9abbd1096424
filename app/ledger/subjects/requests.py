"""Data subject requests: one person, all datasets that know them, one status.

A subject request makes forget requests, at most one for each dataset. Its status follows theirs,
and callbacks about it have the form of OpenDSR 2.0.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.access.pseudonyms import Pseudonyms
from app.delivery.callbacks.events import Callbacks
from app.domain.errors import ConflictError, InvalidInputError, PublicDatasetError
from app.domain.ids import new_id, normal_id, require_ids
from app.domain.states import RequestState
from app.evidence import log
from app.ledger import repository
from app.ledger.accepting import Acceptance
from app.ledger.everywhere import named_in
from app.ledger.new_requests import SALT_BYTES, NewForgetRequest, known_subjects
from app.ledger.requests import ForgetRequests
from app.ledger.subjects.status import find, settle
from app.ledger.tables import SubjectRequestRow
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import DatasetRow
from app.runtime.database.queries import database_time


@dataclass(frozen=True)
class NewSubjectRequest:
    """What a controller asks for.

    Attributes:
        subject_request_id: the controller's own UUID; unique per caller; repeats the first answer.
        datasets: names of the datasets to look into; empty: all that are not public.
        regulation: ``gdpr`` or ``ccpa``.
    """

    subject_request_id: str
    subject_ids: Sequence[str]
    datasets: Sequence[str]
    regulation: str
    submitted_at: datetime
    status_callback_urls: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class SubjectRequests:
    """The service behind ``/opendsr``."""

    pseudonyms: Pseudonyms
    callbacks: Callbacks
    acceptance: Acceptance
    forget_requests: ForgetRequests

    def warm(self, session: Session, asked: NewSubjectRequest) -> None:
        """Read beforehand, without a lock, what ``submit`` will need; raises what it raises."""
        for dataset in self._datasets(session, asked):
            if self._known(session, dataset, asked.subject_ids):
                self.acceptance.present_releases.warm(session, dataset.name)

    def submit(
        self, session: Session, asked: NewSubjectRequest, *, api_key_id: str
    ) -> SubjectRequestRow:
        """Have a person forgotten by every dataset that knows them; replays the earlier answer.

        A person whom no dataset knows is forgotten already: the request is completed at once.
        """
        digest = self._digest(asked)
        now = database_time(session)
        # Of two that come at once, the second waits here until the first is committed.
        mine = insert(SubjectRequestRow).values(
            id=new_id("dsr"),
            api_key_id=api_key_id,
            subject_request_id=asked.subject_request_id,
            request_digest=digest,
            salt=os.urandom(SALT_BYTES),
            regulation=asked.regulation,
            submitted_at=asked.submitted_at,
            received_at=now,
            due_at=now,
        )
        row: SubjectRequestRow | None = session.scalar(
            mine.on_conflict_do_nothing().returning(SubjectRequestRow)
        )
        if row is None:
            earlier = find(session, asked.subject_request_id, api_key_id=api_key_id)
            if earlier.request_digest != digest:
                raise InvalidInputError("subject_request_id was used before with another body")
            return earlier
        self.callbacks.register(
            session,
            asked.status_callback_urls,
            api_key_id=api_key_id,
            subject_request_id=row.id,
        )
        log.changed(session, SubjectRequestRow, [row.id])
        log.append(session, "subject_request.received", subject_request=row.id, key=api_key_id)
        for dataset in self._datasets(session, asked):
            known = self._known(session, dataset, asked.subject_ids)
            if known:
                forget = NewForgetRequest(
                    dataset=dataset.name,
                    subject_ids=known,
                    external_id=named_in(asked.subject_request_id, dataset.name),
                    subject_request_id=row.id,
                )
                self.acceptance.submit(session, forget, api_key_id=api_key_id)
        session.flush()
        settle(session, row)
        return row

    def cancel(
        self, session: Session, subject_request_id: str, *, api_key_id: str
    ) -> SubjectRequestRow:
        """Cancel what is left of a pending request; its records stay forgotten."""
        row = find(session, subject_request_id, api_key_id=api_key_id)
        every = repository.requests_of_subject(session, row.id)
        requests = [request for request in every if request.state != RequestState.CANCELLED]
        if not requests:
            raise ConflictError(f"the request is {row.status}; it can no longer be cancelled")
        for request in requests:  # all lanes before anything else: locks have one order
            datasets.lock_dataset(session, request.dataset_id)
        for request in requests:
            self.forget_requests.cancel(session, request.id)
        return row

    def _digest(self, asked: NewSubjectRequest) -> bytes:
        body = [
            sorted(set(map(normal_id, asked.subject_ids))),
            sorted(set(asked.datasets)),
            asked.regulation,
            asked.submitted_at.isoformat(),
            sorted(set(asked.status_callback_urls)),
        ]
        return self.pseudonyms.upload("opendsr", json.dumps(body).encode())

    def _datasets(self, session: Session, asked: NewSubjectRequest) -> Sequence[DatasetRow]:
        """Return the datasets to look into, in the order in which requests lock them."""
        require_ids(asked.subject_ids, "identity")
        if not asked.datasets:  # the database may sort names in another order than Python
            private = (each for each in datasets.datasets(session) if not each.public)
            return sorted(private, key=lambda dataset: dataset.name)
        named = [datasets.dataset_named(session, name) for name in sorted(set(asked.datasets))]
        for dataset in named:
            if dataset.public:
                raise PublicDatasetError(dataset.name)
        return named

    def _known(
        self, session: Session, dataset: DatasetRow, subject_ids: Sequence[str]
    ) -> list[str]:
        return known_subjects(session, dataset.id, subject_ids, self.pseudonyms)

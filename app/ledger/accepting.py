"""Accepting forget requests: any number of them in one transaction, one statement for each step.

Each is accepted or refused as if it had been the only one, in the order of their arrival: each has
its own epoch, salt and answer, and a refused one leaves no trace. A model's present version covers
all of them or none.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from app.access.pseudonyms import Pseudonyms
from app.delivery.callbacks.events import Callbacks
from app.domain.errors import (
    ConflictError,
    ExpungeError,
    InvalidInputError,
    PayloadTooLargeError,
    PublicDatasetError,
)
from app.domain.ids import new_id, require_ids
from app.domain.policy import THIRTY_DAYS_S
from app.domain.states import Basis, ObligationState, RequestState
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import actor
from app.ledger import outbox, repository
from app.ledger.certificates.present_release import Covering, PresentReleases
from app.ledger.certificates.reissue import Answer, Asked, certify
from app.ledger.locked_models import Involvement, LockedModel, locked_models
from app.ledger.new_requests import (
    MAX_IDS,
    SALT_BYTES,
    Call,
    DedupKeys,
    Known,
    Named,
    NewForgetRequest,
)
from app.ledger.obligations import record as record_obligation
from app.ledger.obligations import state_of
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow, ObligationRow
from app.ledger.transitions import enter
from app.registry import counts
from app.registry.datasets import digests
from app.registry.datasets import repository as datasets
from app.registry.datasets.repository import KeyedRecord
from app.registry.datasets.service import Forget
from app.registry.datasets.tables import DatasetRow
from app.runtime.database.wakeups import Signal, wake
from app.runtime.spans import Span, at_commit, nanoseconds, span_of_request


@dataclass(frozen=True)
class Accepted:
    """The stored request: a new one, or the earlier one that was repeated."""

    request_id: str
    is_new: bool


@dataclass(frozen=True)
class _New:
    """A new request as it will be stored, and what comes with it; ``owed`` waits for runs."""

    row: ForgetRequestRow
    actor: str
    records: list[tuple[KeyedRecord, bytes]]
    callback_urls: Sequence[str] = ()
    owed: list[ObligationRow] = field(default_factory=list)

    @property
    def asked(self) -> Asked:
        """Return what certificates say of it."""
        return Asked(self.row, self.actor)


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Accepts new requests; the signer signs the certificates that can be issued at once."""

    pseudonyms: Pseudonyms
    signer: StatementSigner
    callbacks: Callbacks
    present_releases: PresentReleases

    def submit(
        self, session: Session, request: NewForgetRequest, *, api_key_id: str
    ) -> tuple[ForgetRequestRow, bool]:
        """Accept a request: no run that begins after the commit reads its records.

        Return the request, and whether it is new (False: an earlier answer is replayed).

        Raises:
            NotFoundError: the dataset does not exist.
            PublicDatasetError: the dataset is public; its records are never forgotten.
            UnknownRecordsError: ids that the dataset never held.
            InvalidInputError: no ids, a reused key with another body, or a bad callback.
        """
        call = Call(request, api_key_id=api_key_id, actor=actor.current())
        (accepted,) = self.submit_all(session, [call])
        if isinstance(accepted, ExpungeError):
            raise accepted
        return repository.request(session, accepted.request_id), accepted.is_new

    def submit_all(self, session: Session, calls: Sequence[Call]) -> list[Accepted | ExpungeError]:
        """Accept requests, each as ``submit`` does; a refused one has its error in its place."""
        answers: dict[int, Accepted | ExpungeError] = {}
        ranked = sorted(range(len(calls)), key=lambda i: calls[i].request.dataset)
        for name, indices in groupby(ranked, key=lambda i: calls[i].request.dataset):
            places = list(indices)
            batch = _Batch(session, self)
            answers |= zip(places, batch.accept(name, [calls[i] for i in places]), strict=True)
            batch.certify(self.signer)
            at_commit(session, batch.spans)
        return [answers[i] for i in range(len(calls))]

    def accept(self, session: Session, request_id: str) -> ForgetRequestRow:
        """Accept a request that was held; one that was accepted already stays as it is.

        It reaches the records that it named when it was received: what came later is new.

        Raises:
            NotFoundError: the request does not exist.
            ConflictError: it was refused.
        """
        row = repository.request(session, request_id)
        name = session.get_one(DatasetRow, row.dataset_id).name
        self.present_releases.warm(session, name)
        batch = _Batch(session, self)
        batch.accept_held(name, row)
        batch.certify(self.signer)
        at_commit(session, batch.spans)
        return row

    def replacing(self, dataset: str, *, api_key_id: str) -> Forget:
        """Return what has those records forgotten whose place others take in a dataset."""

        def forget(session: Session, record_ids: Sequence[str]) -> str:
            if len(record_ids) > MAX_IDS:
                raise PayloadTooLargeError(
                    f"{len(record_ids)} records would be replaced; the limit is {MAX_IDS}; send "
                    "the file in parts"
                )
            self.present_releases.warm(session, dataset)
            asked = NewForgetRequest(
                dataset=dataset, record_ids=record_ids, replacements=len(record_ids)
            )
            return self.submit(session, asked, api_key_id=api_key_id)[0].id

        return forget


class _Batch:
    """The new requests for one dataset: first accepted, then certified as far as they can be."""

    def __init__(self, session: Session, acceptance: Acceptance) -> None:
        self._new: list[_New] = []  # in the order of their epochs
        self._held: list[_New] = []  # nothing is forgotten for these yet
        self._answers: list[Answer] = []  # what the models answer at once
        self._session = session
        self._pseudonyms = acceptance.pseudonyms
        self._callbacks = acceptance.callbacks
        self._present_releases = acceptance.present_releases

    def accept(self, name: str, calls: Sequence[Call]) -> list[Accepted | ExpungeError]:
        session = self._session
        try:
            self._lock(name)
        except ExpungeError as error:
            return [error for _ in calls]
        dataset = self._dataset
        named = [Named.by(call.request, dataset.id, self._pseudonyms) for call in calls]
        dedup_keys = [DedupKeys.of(call.request, dataset.id, self._pseudonyms) for call in calls]
        self._earlier = self._earlier_requests(calls, dedup_keys)
        self._known = Known.read(session, dataset.id, named)
        deadlines_s = [locked.policy.deadline_s for locked in self._locked_models]
        self._deadline = self._now + timedelta(seconds=min(deadlines_s, default=THIRTY_DAYS_S))
        answers = [self._answer(*each) for each in zip(calls, dedup_keys, named, strict=True)]
        epochs = self._taken()
        if made := [*self._new, *self._held]:
            self._store(made)
        if self._new:
            self._forget(epochs)
        return answers

    def accept_held(self, name: str, row: ForgetRequestRow) -> None:
        self._lock(name)
        repository.request(self._session, row.id, lock=True)
        if row.state == RequestState.REFUSED:
            raise ConflictError("the request is refused; reopen it first")
        if row.state == RequestState.RECEIVED:
            self._dataset.forget_epoch += 1
            row.state, row.forget_epoch = RequestState.ACCEPTED, self._dataset.forget_epoch
            records = repository.commitments_by_record(self._session, row.id)
            self._new.append(_New(row, actor.current(), records))
            self._forget(self._taken())

    def _lock(self, name: str) -> None:
        self._dataset, self._now = datasets.lock_dataset_at(self._session, name)
        self._locked_models = locked_models(self._session, self._dataset.id)

    def certify(self, signer: StatementSigner) -> None:
        """Issue the certificates that answer requests at once, and end these."""
        for answer in self._answers:
            certify(self._session, signer, answer, now=self._now)
        answered = {asked.row.id for answer in self._answers for asked in answer.asked}
        ended = [new for new in self._new if new.row.id in answered or not new.owed]
        for new in ended:
            owed = {ObligationState.OPEN} if new.owed else set()
            certified = {ObligationState.CERTIFIED} if new.row.id in answered else set()
            with actor.acting_as(new.actor):
                enter(self._session, new.row, state_of(owed | certified))
        if ended:
            repository.store_states(self._session, [new.row for new in ended])
            wake(self._session, Signal.ERASABLE)

    def spans(self) -> Iterator[Span]:
        """Yield what traces say of the new requests."""
        for row in (new.row for new in self._new):
            yield span_of_request(row.id, begun_ns=nanoseconds(self._now), state=row.state)

    def _earlier_requests(
        self, calls: Sequence[Call], dedup_keys: Sequence[DedupKeys]
    ) -> dict[tuple[str, str, bytes], tuple[str, bytes | None]]:
        """Return id and digest of the callers' earlier requests, by the names that they gave."""
        wanted = [
            name
            for call, keys in zip(calls, dedup_keys, strict=True)
            for name in keys.names(call.api_key_id)
        ]
        found: dict[tuple[str, str, bytes], tuple[str, bytes | None]] = {}
        for row in repository.earlier_requests(self._session, wanted):
            keys = DedupKeys(row.external_key, row.idempotency_key, row.request_digest)
            found |= dict.fromkeys(keys.names(row.api_key_id), (row.id, row.request_digest))
        return found

    def _answer(self, call: Call, keys: DedupKeys, named: Named) -> Accepted | ExpungeError:
        try:
            return self._replayed(call, keys) or self._accept(call, keys, named)
        except ExpungeError as error:
            return error

    def _replayed(self, call: Call, keys: DedupKeys) -> Accepted | None:
        names = keys.names(call.api_key_id)
        earlier = [self._earlier[name] for name in names if name in self._earlier]
        if any(digest != keys.digest for _, digest in earlier):
            raise InvalidInputError(
                "external_id or Idempotency-Key was used before with another body"
            )
        return Accepted(earlier[0][0], is_new=False) if earlier else None

    def _accept(self, call: Call, keys: DedupKeys, named: Named) -> Accepted:
        asked = call.request
        if self._dataset.public:
            raise PublicDatasetError(self._dataset.name)
        if not asked.size:
            raise InvalidInputError("name at least one of record_ids and subject_ids")
        require_ids(asked.record_ids, "record_ids")
        require_ids(asked.subject_ids, "subject_ids")
        callback_urls = self._callbacks.check(asked.status_callback_urls)
        request_id, salt = new_id("fr"), os.urandom(SALT_BYTES)
        records = self._known.resolve(named, self._pseudonyms.receipt_salt(request_id, salt))
        if not asked.hold:
            self._dataset.forget_epoch += 1
        row = ForgetRequestRow(
            id=request_id,
            dataset_id=self._dataset.id,
            api_key_id=call.api_key_id,
            external_key=keys.external_key,
            idempotency_key=keys.idempotency_key,
            request_digest=keys.digest,
            salt=salt,
            state=RequestState.RECEIVED if asked.hold else RequestState.ACCEPTED,
            forget_epoch=None if asked.hold else self._dataset.forget_epoch,
            record_count=len(records),
            push_count=len({record.shard_id for record, _ in records} - {None}),
            received_at=self._now,
            due_at=self._deadline,
            callback_count=len(callback_urls),
            **asked.stored,
        )
        for name in keys.names(call.api_key_id):
            self._earlier[name] = (row.id, keys.digest)
        new = _New(row, call.actor, records, callback_urls)
        (self._held if asked.hold else self._new).append(new)
        return Accepted(row.id, is_new=True)

    def _store(self, made: Sequence[_New]) -> None:
        session = self._session
        session.add_all(new.row for new in made)
        session.flush()
        commitments = [
            {"request_id": new.row.id, "record_seq": record.seq, "commitment": commitment}
            for new in made
            for record, commitment in new.records
        ]
        if commitments:
            session.execute(insert(ForgottenRecordRow), commitments)
        for new in made:
            with actor.acting_as(new.actor):
                if new.callback_urls:
                    self._callbacks.register(
                        session,
                        new.callback_urls,
                        api_key_id=new.row.api_key_id,
                        request_id=new.row.id,
                    )
                if new.row.forget_epoch is None:
                    enter(session, new.row, RequestState.RECEIVED, **_facts(new, {}))

    def _forget(self, epochs: Mapping[int, int]) -> None:
        session = self._session
        session.flush()
        datasets.mark_forgotten(session, epochs)
        lineages = [
            (locked.model.id, locked.membership)
            for locked in self._locked_models
            if locked.membership is not None
        ]
        named = {record.seq: record for new in self._new for record, _ in new.records}
        counts.forget(session, lineages, [named[seq] for seq in epochs])
        for locked in self._locked_models:
            if self._decide(locked, epochs):
                topic, delay_s = outbox.Topic.SCHEDULE_MODEL, locked.policy.window_s
                outbox.post(session, topic, locked.model.id, delay_s=delay_s)
        session.add_all(obligation for new in self._new for obligation in new.owed)
        session.flush()
        for new in self._new:
            with actor.acting_as(new.actor):
                enter(session, new.row, RequestState.ACCEPTED, **_facts(new, epochs))
                for obligation in new.owed:
                    record_obligation(session, obligation)

    def _taken(self) -> dict[int, int]:
        """Take the named records from what is remembered; return when each was forgotten.

        That is the epoch of the first request that names it.
        """
        epochs: dict[int, int] = {}
        for new in self._new:
            for record, _ in new.records:
                if record.forgotten_epoch is None and new.row.forget_epoch is not None:
                    epochs.setdefault(record.seq, new.row.forget_epoch)
        self._dataset.remembered -= len(epochs)
        return epochs

    def _decide(self, locked: LockedModel, epochs: Mapping[int, int]) -> bool:
        """Note what a model owes each request; return whether that needs a run."""
        parts: dict[Involvement, list[_New]] = {part: [] for part in Involvement}
        for new in self._new:
            parts[Involvement.of(list(_as_forgotten(new, epochs)), locked)].append(new)
        covered, covering = self._cover(locked, parts)
        ids = {new.row.id for new in covered}
        for new in (*parts[Involvement.UNCOVERED], *parts[Involvement.UNLEARNED]):
            if new.row.id not in ids:
                new.owed.append(
                    ObligationRow(
                        id=new_id("ob"),
                        request_id=new.row.id,
                        model_id=locked.model.id,
                        state=ObligationState.OPEN,
                        basis=Basis.UNLEARNED,
                    )
                )
        groups = (covered, parts[Involvement.HELD_OUT], parts[Involvement.LEFT_OUT])
        asked = ([new.asked for new in some] for some in groups)
        self._answers.append(Answer(locked, covering, *asked))
        return len(covered) < len(parts[Involvement.UNCOVERED]) + len(parts[Involvement.UNLEARNED])

    def _cover(
        self, locked: LockedModel, parts: Mapping[Involvement, list[_New]]
    ) -> tuple[list[_New], Covering | None]:
        """Return the requests that the present version covers, and the certificate for them."""
        uncovered, unlearned = parts[Involvement.UNCOVERED], parts[Involvement.UNLEARNED]
        excluded = (parts[Involvement.HELD_OUT], parts[Involvement.LEFT_OUT])
        covering = None
        if uncovered:
            covering = self._present_releases.more(
                self._session,
                locked,
                through_epoch=self._dataset.forget_epoch,
                excluded=[[new.row.id for new in some] for some in excluded],
                now=self._now,
            )
        if covering is not None:
            return [*uncovered, *unlearned], covering
        if unlearned:
            ids = [new.row.id for new in unlearned]
            covering = self._present_releases.again(self._session, locked, ids, now=self._now)
        return ([] if covering is None else unlearned), covering


def _as_forgotten(new: _New, epochs: Mapping[int, int]) -> Iterator[KeyedRecord]:
    """Return a request's records as they are from now on."""
    for record, _ in new.records:
        marked = record.forgotten_epoch is None
        yield record._replace(forgotten_epoch=epochs[record.seq]) if marked else record


def _facts(new: _New, epochs: Mapping[int, int]) -> dict[str, Any]:
    """Return what the log says about a new request."""
    row = new.row
    rows = digests.named(row.id, new.records, salt=row.salt)
    if row.forget_epoch is not None:
        marked = [r.seq for r, _ in new.records if epochs.get(r.seq) == row.forget_epoch]
        rows |= digests.marked(row.dataset_id, row.forget_epoch, marked)
    part_of = row.subject_request_id
    return {
        "dataset": row.dataset_id,
        "key": row.api_key_id,
        "records": row.record_count,
        "due_at": row.due_at.astimezone(UTC).isoformat(),
        **({} if part_of is None else {"subject_request": part_of}),
        **({"replacements": row.replacement_count} if row.replacement_count else {}),
        "rows": rows,
    }

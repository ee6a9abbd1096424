"""Accepting forget requests: any number of them in one transaction, one statement for each step.

Each demand is decided as if it had been the only one, in the order of the demands: each has its own
epoch, salt and answer, and a refused one leaves no trace.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import ARRAY, BigInteger, func, insert, literal, update
from sqlalchemy.orm import Session

from app.callbacks.events import Callbacks
from app.certificates.signing import StatementSigner
from app.datasets import digests
from app.datasets import repository as datasets
from app.datasets.pseudonyms import Pseudonyms
from app.datasets.repository import KeyedRecord
from app.datasets.tables import RecordRow
from app.domain.errors import ExpungeError, InvalidInputError
from app.domain.ids import new_id
from app.domain.policy import THIRTY_DAYS_S, Policy
from app.domain.states import Basis, ObligationState, RequestState
from app.ledger import outbox, repository
from app.ledger.demands import Call, ForgetDemand, Known, Named, Recognition
from app.ledger.obligations import record as record_obligation
from app.ledger.reissue import Settled, certify
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow, ObligationRow
from app.ledger.transitions import enter
from app.log import actor
from app.registry.membership import Membership, membership_of
from app.registry.standing import Standing, standings


def utc_now() -> datetime:
    """Return the present moment, with its time zone."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Taken:
    """A demand that was accepted: its request, a new one or an earlier one that it repeats."""

    request_id: str
    is_new: bool


@dataclass(frozen=True)
class _New:
    """A new request, and what comes with it.

    Attributes:
        row: as it is stored.
        actor: who is named in the log.
        records: each record that it names, with its commitment.
        callback_urls: where to send changes.
        owed: what models owe it.
        settled: what can be certified at once; the certificates are not issued yet.
    """

    row: ForgetRequestRow
    actor: str
    records: list[tuple[KeyedRecord, bytes]]
    callback_urls: Sequence[str]
    owed: list[ObligationRow] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)


class Acceptance:
    """Accepts demands.

    Args:
        pseudonyms: recognise ids.
        signer: signs the certificates that can be issued at once.
        callbacks: stores addresses.
        clock: the present moment.
    """

    def __init__(
        self,
        *,
        pseudonyms: Pseudonyms,
        signer: StatementSigner,
        callbacks: Callbacks,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._pseudonyms = pseudonyms
        self._signer = signer
        self._callbacks = callbacks
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
        answers: dict[int, Taken | ExpungeError] = {}
        ranked = sorted(range(len(calls)), key=lambda i: calls[i].demand.dataset)
        for name, indices in groupby(ranked, key=lambda i: calls[i].demand.dataset):
            of = list(indices)
            batch = _Batch(session, self._pseudonyms, self._callbacks, self._clock())
            answers |= zip(of, batch.take(name, [calls[i] for i in of]), strict=True)
            for new in batch.new:
                if new.settled or not new.owed:
                    with actor.acting_as(new.actor):
                        certify(session, self._signer, new.row, new.settled, now=self._clock())
        return [answers[i] for i in range(len(calls))]


class _Batch:
    """The demands on one dataset.

    Attributes:
        new: the requests that were accepted, in the order of their epochs.
    """

    def __init__(
        self, session: Session, pseudonyms: Pseudonyms, callbacks: Callbacks, now: datetime
    ) -> None:
        self.new: list[_New] = []
        self._session = session
        self._pseudonyms = pseudonyms
        self._callbacks = callbacks
        self._now = now

    def take(self, name: str, calls: Sequence[Call]) -> list[Taken | ExpungeError]:
        session = self._session
        try:
            dataset = datasets.lock_dataset_named(session, name)
        except ExpungeError as error:
            return [error for _ in calls]
        self._dataset = dataset
        named = [Named.by(call.demand, dataset.id, self._pseudonyms) for call in calls]
        signs = [Recognition.of(call.demand, dataset.id, self._pseudonyms) for call in calls]
        self._earlier = self._earlier_requests(calls, signs)
        self._known = Known.read(session, dataset.id, named)
        self._models = [_Model.of(standing) for standing in standings(session, dataset.id)]
        deadlines_s = [model.policy.deadline_s for model in self._models]
        self._deadline = self._now + timedelta(seconds=min(deadlines_s, default=THIRTY_DAYS_S))
        answers = [self._answer(*of) for of in zip(calls, signs, named, strict=True)]
        if self.new:
            self._store()
        return answers

    def _earlier_requests(
        self, calls: Sequence[Call], signs: Sequence[Recognition]
    ) -> dict[tuple[str, str, bytes], tuple[str, bytes]]:
        """Return id and digest of the callers' earlier requests, by the names that they gave."""
        wanted = [
            name
            for call, sign in zip(calls, signs, strict=True)
            for name in sign.names(call.api_key_id)
        ]
        found: dict[tuple[str, str, bytes], tuple[str, bytes]] = {}
        for row in repository.earlier_requests(self._session, wanted):
            sign = Recognition(row.external_key, row.idempotency_key, row.request_digest)
            found |= dict.fromkeys(sign.names(row.api_key_id), (row.id, row.request_digest))
        return found

    def _answer(self, call: Call, sign: Recognition, named: Named) -> Taken | ExpungeError:
        try:
            return self._replayed(call, sign) or self._taken_on(call, sign, named)
        except ExpungeError as error:
            return error

    def _replayed(self, call: Call, sign: Recognition) -> Taken | None:
        names = sign.names(call.api_key_id)
        earlier = [self._earlier[name] for name in names if name in self._earlier]
        if any(digest != sign.digest for _, digest in earlier):
            raise InvalidInputError(
                "external_id or Idempotency-Key was used before with another body"
            )
        return Taken(earlier[0][0], is_new=False) if earlier else None

    def _taken_on(self, call: Call, sign: Recognition, named: Named) -> Taken:
        demand = call.demand
        if not demand.size:
            raise InvalidInputError("name at least one of record_ids and subject_ids")
        callback_urls = self._callbacks.check(demand.status_callback_urls)
        request_id = new_id("fr")
        records = self._known.resolve(named, self._pseudonyms.receipt_salt(request_id))
        self._dataset.forget_epoch += 1
        row = ForgetRequestRow(
            id=request_id,
            dataset_id=self._dataset.id,
            api_key_id=call.api_key_id,
            external_key=sign.external_key,
            idempotency_key=sign.idempotency_key,
            request_digest=sign.digest,
            state=RequestState.ACCEPTED,
            forget_epoch=self._dataset.forget_epoch,
            record_count=len(records),
            received_at=self._now,
            due_at=self._deadline,
            subject_request_id=demand.subject_request_id,
            callback_count=len(callback_urls),
        )
        for name in sign.names(call.api_key_id):
            self._earlier[name] = (row.id, sign.digest)
        self.new.append(_New(row, call.actor, records, callback_urls))
        return Taken(row.id, is_new=True)

    def _store(self) -> None:
        session, epochs = self._session, self._epochs()
        session.add_all(new.row for new in self.new)
        session.flush()
        commitments = [
            {"request_id": new.row.id, "record_seq": record.seq, "commitment": commitment}
            for new in self.new
            for record, commitment in new.records
        ]
        if commitments:
            session.execute(insert(ForgottenRecordRow), commitments)
        _mark_forgotten(session, epochs)
        for model in self._models:
            if model.membership is not None and self._decide(model, model.membership, epochs):
                topic = outbox.Topic.SCHEDULE_MODEL
                outbox.post(session, topic, model.standing.id, delay_s=model.policy.window_s)
        session.add_all(obligation for new in self.new for obligation in new.owed)
        session.flush()
        for new in self.new:
            with actor.acting_as(new.actor):
                if new.callback_urls:
                    self._callbacks.register(
                        session,
                        new.callback_urls,
                        api_key_id=new.row.api_key_id,
                        request_id=new.row.id,
                    )
                enter(session, new.row, RequestState.ACCEPTED, **_facts(new, epochs))
                for obligation in new.owed:
                    record_obligation(session, obligation)

    def _epochs(self) -> dict[int, int]:
        """Return the epoch of forgetting of records: that of the first demand that names each."""
        epochs: dict[int, int] = {}
        for new in self.new:
            for record, _ in new.records:
                if record.forgotten_epoch is None:
                    epochs.setdefault(record.seq, new.row.forget_epoch)
        return epochs

    def _decide(self, model: "_Model", membership: Membership, epochs: Mapping[int, int]) -> bool:
        """Note what a model owes each request; return whether that needs a run."""
        waits = [_decide_one(new, model.standing, membership, epochs) for new in self.new]
        return any(waits)


@dataclass(frozen=True)
class _Model:
    """A model, with what is read of it once for all demands."""

    standing: Standing
    policy: Policy
    membership: Membership | None

    @classmethod
    def of(cls, standing: Standing) -> "_Model":
        return cls(standing, Policy.from_json(standing.policy), membership_of(standing))


def _mark_forgotten(session: Session, epochs: Mapping[int, int]) -> None:
    columns = (literal(list(of), ARRAY(BigInteger)) for of in (epochs, epochs.values()))
    marks = func.unnest(*columns).table_valued("seq", "epoch", name="marks").render_derived()
    session.execute(
        update(RecordRow)
        .where(RecordRow.seq == marks.c.seq, RecordRow.forgotten_epoch.is_(None))
        .values(forgotten_epoch=marks.c.epoch)
        .execution_options(synchronize_session=False)
    )


def _decide_one(
    new: _New, standing: Standing, membership: Membership, epochs: Mapping[int, int]
) -> bool:
    """Note what a model owes a request; return whether that needs a run."""
    included = [
        (record, life.forgotten)
        for record in _as_forgotten(new, epochs)
        if (life := membership.life_of(record)) is not None
    ]
    touched = [
        epoch
        for record, epoch in included
        if epoch is not None and membership.learned_from(record.record_key)
    ]
    if touched and (standing.covers_epoch is None or max(touched) > standing.covers_epoch):
        new.owed.append(
            ObligationRow(
                id=new_id("ob"),
                request_id=new.row.id,
                model_id=standing.id,
                state=ObligationState.OPEN,
                basis=Basis.UNLEARNED,
            )
        )
        return True
    if included and standing.covers_epoch is not None:
        basis = Basis.UNLEARNED if touched else Basis.EXCLUDED_FROM_TRAINING
        new.settled.append(Settled(standing.id, basis))
    return False


def _as_forgotten(new: _New, epochs: Mapping[int, int]) -> Iterator[KeyedRecord]:
    """Return a request's records as they are from now on."""
    for record, _ in new.records:
        marked = record.forgotten_epoch is None
        yield record._replace(forgotten_epoch=epochs[record.seq]) if marked else record


def _facts(new: _New, epochs: Mapping[int, int]) -> dict[str, Any]:
    """Return what the log says about a new request: every value that its row must have."""
    row = new.row
    marked = [r.seq for r, _ in new.records if epochs.get(r.seq) == row.forget_epoch]
    part_of = row.subject_request_id
    return {
        "dataset": row.dataset_id,
        "key": row.api_key_id,
        "epoch": row.forget_epoch,
        "records": row.record_count,
        "names": digests.of_names(new.records),
        **digests.marks(marked),
        "received_at": row.received_at.astimezone(UTC).isoformat(),
        "due_at": row.due_at.astimezone(UTC).isoformat(),
        **({} if part_of is None else {"subject_request": part_of}),
    }

"""Accepting forget requests: any number of them in one transaction, one statement for each step.

Each demand is decided as if it had been the only one, in the order of the demands: each has its own
epoch, salt and answer, and a refused one leaves no trace.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy.orm import Session

from app.callbacks.events import Callbacks
from app.database.direct import directly
from app.datasets import digests
from app.datasets import repository as datasets
from app.datasets.pseudonyms import Pseudonyms
from app.datasets.repository import KeyedRecord
from app.domain.errors import ExpungeError, InvalidInputError
from app.domain.ids import new_id
from app.domain.policy import THIRTY_DAYS_S, Policy
from app.domain.states import Basis, ObligationState, RequestState
from app.ledger import acceptance_rows, repository
from app.ledger.demands import Call, Recognition
from app.ledger.naming import Known, Named
from app.ledger.obligations import record as record_obligation
from app.ledger.tables import ForgetRequestRow, ObligationRow
from app.ledger.transitions import enter
from app.log import actor
from app.registry.membership import Membership, membership_of
from app.registry.standing import Standing, standings


@dataclass(frozen=True)
class Settled:
    """What a model's present head covers already, so that it is certified at once."""

    model_id: str
    basis: Basis


@dataclass
class Taken:
    """The outcome of a demand.

    Attributes:
        request_id: of the request, a new one or an earlier one.
        is_new: False where an earlier answer is replayed.
        row: of a new request, as it is stored; not an object of the session.
        dataset: its dataset's name.
        owed: what models owe it, with their names.
        settled: what can be certified at once; the certificates are not issued yet.
    """

    request_id: str
    is_new: bool = False
    row: ForgetRequestRow | None = None
    dataset: str = ""
    actor: str = actor.SERVICE
    records: list[tuple[KeyedRecord, bytes]] = field(default_factory=list)
    callback_urls: Sequence[str] = ()
    owed: list[tuple[str, ObligationRow]] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Return whether the request waits only for runs of its models."""
        return bool(self.owed) and not self.settled


class Acceptance:
    """Accepts demands, except for the certificates that can be issued at once.

    Args:
        pseudonyms: recognise ids.
        callbacks: stores addresses.
    """

    def __init__(self, pseudonyms: Pseudonyms, callbacks: Callbacks) -> None:
        self._pseudonyms = pseudonyms
        self._callbacks = callbacks

    def take(
        self, session: Session, calls: Sequence[Call], *, now: datetime
    ) -> list[Taken | ExpungeError]:
        """Return, for each demand, its outcome or why it is refused."""
        answers: list[Taken | ExpungeError | None] = [None] * len(calls)
        ranked = sorted(range(len(calls)), key=lambda i: calls[i].demand.dataset)
        for name, indices in groupby(ranked, key=lambda i: calls[i].demand.dataset):
            of = list(indices)
            batch = _Batch(session, self._pseudonyms, self._callbacks, now)
            for index, answer in zip(of, batch.take(name, [calls[i] for i in of]), strict=True):
                answers[index] = answer
        return [answer for answer in answers if answer is not None]


class _Batch:
    """The demands on one dataset."""

    def __init__(
        self, session: Session, pseudonyms: Pseudonyms, callbacks: Callbacks, now: datetime
    ) -> None:
        self._session = session
        self._pseudonyms = pseudonyms
        self._callbacks = callbacks
        self._now = now

    def take(self, name: str, calls: Sequence[Call]) -> list[Taken | ExpungeError]:
        try:
            dataset = datasets.locked_dataset(self._session, name)
        except ExpungeError as error:
            return [error for _ in calls]
        self._dataset = dataset
        self._named = [Named.by(call.demand, dataset.id, self._pseudonyms) for call in calls]
        signs = [Recognition.of(call.demand, dataset.id, self._pseudonyms) for call in calls]
        self._earlier = self._earlier_requests(calls, signs)
        with directly(self._session) as direct:
            self._known = Known.read(direct, dataset.id, self._named)
            self._models = [_Model.of(standing) for standing in standings(direct, dataset.id)]
        deadlines_s = [model.policy.deadline_s for model in self._models]
        self._deadline = self._now + timedelta(seconds=min(deadlines_s, default=THIRTY_DAYS_S))
        self._epoch = dataset.forget_epoch
        answers = [self._answer(*of) for of in zip(calls, signs, self._named, strict=True)]
        new = [answer for answer in answers if isinstance(answer, Taken) and answer.is_new]
        if new:
            self._store(new)
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
        return Taken(earlier[0][0]) if earlier else None

    def _taken_on(self, call: Call, sign: Recognition, named: Named) -> Taken:
        demand = call.demand
        if not demand.size:
            raise InvalidInputError("name at least one of record_ids and subject_ids")
        callback_urls = self._callbacks.check(demand.status_callback_urls)
        request_id = new_id("fr")
        salt = self._pseudonyms.receipt_salt(request_id)
        records = self._known.resolve(named, salt)
        self._epoch += 1
        row = ForgetRequestRow(
            id=request_id,
            dataset_id=self._dataset.id,
            api_key_id=call.api_key_id,
            external_key=sign.external_key,
            idempotency_key=sign.idempotency_key,
            request_digest=sign.digest,
            state=RequestState.ACCEPTED,
            forget_epoch=self._epoch,
            record_count=len(records),
            received_at=self._now,
            due_at=self._deadline,
            subject_request_id=demand.subject_request_id,
            callback_count=len(callback_urls),
        )
        for name in sign.names(call.api_key_id):
            self._earlier[name] = (row.id, sign.digest)
        return Taken(
            row.id,
            is_new=True,
            row=row,
            dataset=self._dataset.name,
            actor=call.actor,
            records=records,
            callback_urls=callback_urls,
        )

    def _store(self, new: Sequence[Taken]) -> None:
        session = self._session
        rows = [taken.row for taken in new if taken.row is not None]
        epochs = _epochs(new)
        acceptance_rows.insert(
            session,
            rows,
            woken=self._decide(new, epochs),
            named=[(t.request_id, record, proof) for t in new for record, proof in t.records],
            obligations=[obligation for t in new for _, obligation in t.owed],
            forgotten=epochs,
        )
        for taken, row in zip(new, rows, strict=True):
            with actor.acting_as(taken.actor):
                if taken.callback_urls:
                    self._callbacks.register(
                        session,
                        taken.callback_urls,
                        api_key_id=row.api_key_id,
                        request_id=row.id,
                    )
                enter(session, row, RequestState.ACCEPTED, **_facts(taken, row, epochs))
                for _, obligation in taken.owed:
                    record_obligation(session, obligation)

    def _decide(self, new: Sequence[Taken], epochs: dict[int, int]) -> dict[str, float]:
        """Note what each model owes each request; return when to wake those that owe something."""
        woken: dict[str, float] = {}
        for model in self._models:
            if model.membership is None:
                continue
            waits = [_decide_one(t, model, model.membership, epochs) for t in new]
            if any(waits):
                woken[model.standing.id] = model.policy.window_s
        return woken


@dataclass(frozen=True)
class _Model:
    """A model, with what is read of it once for all demands."""

    standing: Standing
    policy: Policy
    membership: Membership | None

    @classmethod
    def of(cls, standing: Standing) -> "_Model":
        return cls(standing, Policy.from_json(standing.policy), membership_of(standing))


def _decide_one(
    taken: Taken, model: _Model, membership: Membership, epochs: dict[int, int]
) -> bool:
    """Record what a model owes a request; return whether that needs a run."""
    standing = model.standing
    included = [
        (record, life.forgotten)
        for record in _as_forgotten(taken, epochs)
        if (life := membership.life_of(record)) is not None
    ]
    touched = [
        epoch
        for record, epoch in included
        if epoch is not None and membership.learned_from(record.record_key)
    ]
    if touched and (standing.covers_epoch is None or max(touched) > standing.covers_epoch):
        taken.owed.append((standing.name, _obligation(taken.request_id, standing.id)))
        return True
    if included and standing.covers_epoch is not None:
        basis = Basis.UNLEARNED if touched else Basis.EXCLUDED_FROM_TRAINING
        taken.settled.append(Settled(standing.id, basis))
    return False


def _as_forgotten(taken: Taken, epochs: dict[int, int]) -> Iterator[KeyedRecord]:
    """Return a request's records as they are from now on."""
    for record, _ in taken.records:
        new = record.forgotten_epoch is None
        yield record._replace(forgotten_epoch=epochs[record.seq]) if new else record


def _epochs(new: Sequence[Taken]) -> dict[int, int]:
    """Return each record's epoch of forgetting: that of the first demand that names it."""
    epochs: dict[int, int] = {}
    for taken in new:
        if taken.row is not None:
            for record, _ in taken.records:
                if record.forgotten_epoch is None:
                    epochs.setdefault(record.seq, taken.row.forget_epoch)
    return epochs


def _facts(taken: Taken, row: ForgetRequestRow, epochs: Mapping[int, int]) -> dict[str, Any]:
    """Return what the log says about a new request: every value that its row must have."""
    marked = [r.seq for r, _ in taken.records if epochs.get(r.seq) == row.forget_epoch]
    part_of = row.subject_request_id
    return {
        "dataset": row.dataset_id,
        "key": row.api_key_id,
        "epoch": row.forget_epoch,
        "records": row.record_count,
        "names": digests.of_names(taken.records),
        **digests.marks(marked),
        "received_at": row.received_at.astimezone(UTC).isoformat(),
        "due_at": row.due_at.astimezone(UTC).isoformat(),
        **({} if part_of is None else {"subject_request": part_of}),
    }


def _obligation(request_id: str, model_id: str) -> ObligationRow:
    return ObligationRow(
        id=new_id("ob"),
        request_id=request_id,
        model_id=model_id,
        state=ObligationState.OPEN,
        basis=Basis.UNLEARNED,
    )

"""A dataset and its models, worked on by hand: runs are leased, begun and published in the test."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.access import api_keys
from app.accounting.histories.history import History
from app.domain.architectures import ArchitectureSpec
from app.domain.heads import linear_head
from app.domain.plan import Plan, TrainingKind
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.domain.states import Basis, FirstRelease, Forgetting, RunKind, Scope, WeightsSource
from app.evidence.certificates.parameters import draws_of, grid_of
from app.evidence.certificates.schema import SECURE_NOISE, NoiseSection
from app.evidence.certificates.statement import CertifyingPhase
from app.evidence.certificates.weights_file import tensors_sha256
from app.ledger import outbox, publication, repository, runs, scheduling, selections
from app.ledger.models import definitions, endings, retraining
from app.ledger.new_requests import NewForgetRequest
from app.ledger.selections import Selection
from app.ledger.tables import ForgetRequestRow, ObligationRow, OutboxRow, RunRow
from app.ledger.training import membership_of_run
from app.planning.tracking import trained_history
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import PushResult, define_dataset
from app.registry.datasets.tables import RecordRow
from app.registry.membership import Membership, membership_of
from app.registry.tables import ModelRow, VersionRow
from app.registry.training_set import TrainingSet
from app.services import Services
from app.storage.blobs import StoredBlob
from demo.tables import record_table
from tests.support import weights
from tests.support.arrays import array_schema, array_task
from tests.support.patience import until
from tests.support.splits import fair_salt
from tests.support.statements import ARITHMETIC

DATASET = "people"
RECORDS = 40
SCHEMA = array_schema(2)
TASK = array_task(2)
RECORDS_PER_SUBJECT = 4
RECIPE = TrainingRecipe(epochs=4, batch_size=4, held_out_fraction=0.25)
LEASE_S = 30.0


def batches_of(
    training_set: TrainingSet, batch_size: int, *, begun_at_epoch: int
) -> dict[int, int]:
    """Return the fixed batch of every record that a training read, by its number."""
    seqs, batch_of = training_set.batches(batch_size, begun_at_epoch=begun_at_epoch)
    return dict(zip(seqs.tolist(), batch_of.tolist(), strict=True))


def record_ids(count: int = RECORDS, *, first: int = 0) -> list[str]:
    """Return ids as the workshop spells them."""
    return [f"record-{i}" for i in range(first, first + count)]


def records_parquet(count: int = RECORDS, *, first: int = 0) -> bytes:
    """Return records of two float features, one subject per four records."""
    return _parquet(range(first, first + count))


def _parquet(numbers: Sequence[int], *, changed_by: float = 0.0) -> bytes:
    return to_parquet(
        record_table(
            record_ids=[f"record-{i}" for i in numbers],
            subject_ids=[f"subject-{i // RECORDS_PER_SUBJECT}" for i in numbers],
            labels=[i % 2 for i in numbers],
            features=np.array([[i, changed_by - i] for i in numbers], dtype=np.float32),
        )
    )


def _numbers(ids: Sequence[str]) -> list[int]:
    return [int(each.removeprefix("record-")) for each in ids]


_OF_HEADS = (TrainingKind.DESCENT, TrainingKind.EXACT)


@dataclass(frozen=True)
class Held:
    """A run under its fencing token."""

    run_id: str
    token: int


class Begun(NamedTuple):
    """What a run has fixed: sets of records' numbers, and the batch of each one to learn from."""

    plan: Plan
    retain: set[int]
    held_out: set[int]
    members: dict[int, set[int]]
    batch_of: dict[int, int]

    @classmethod
    def of(cls, chosen: Selection) -> "Begun":
        """Return what a selection says in arrays."""
        retain, batch_of = chosen.retain.tolist(), chosen.batch_of
        return cls(
            chosen.plan,
            set(retain),
            set(chosen.held_out.tolist()),
            {member: set(seqs.tolist()) for member, seqs in chosen.members.items()},
            {} if batch_of is None else dict(zip(retain, batch_of.tolist(), strict=True)),
        )


class Workshop:
    """Everything that a ledger test does, one line each."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._changes = 0
        self.forged = False
        """Whether the test changed rows behind the log's back."""
        self.evaluation: dict[str, Any] = {"held_out_records": 0}
        """What runs have measured."""
        self.transaction = services.database.transaction
        with self.transaction() as session:
            self.key_id = api_keys.create_key(session, name="test", scopes=[Scope.ADMIN])[0].id
            define_dataset(session, name=DATASET, schema=SCHEMA)
        self.push()

    def push(self, count: int = RECORDS, *, first: int = 0) -> None:
        self.services.records.push(DATASET, records_parquet(count, first=first))

    def push_again(self, *ids: str) -> PushResult:
        """Push records as they were pushed first."""
        return self.services.records.push(DATASET, _parquet(_numbers(ids)))

    def replace(self, *ids: str) -> PushResult:
        """Push records with other values, each time others, in the place of those stored."""
        self._changes += 1
        content = _parquet(_numbers(ids), changed_by=self._changes / 64)
        forget = self.services.acceptance.replacing(DATASET, api_key_id=self.key_id)
        return self.services.records.push(DATASET, content, forget=forget)

    # Models and their runs

    def retrain(self, name: str = "model") -> str:
        """Ask for a new training; return its run."""
        return retraining.retrain(self.services.database, name).id

    def archive(self, name: str = "model") -> None:
        with self.transaction() as session:
            endings.archive_model(session, name)

    def define(
        self,
        name: str = "model",
        *,
        upload: bool = False,
        architecture: str | ArchitectureSpec = "logistic",
        dataset: str = DATASET,
        recipe: Mapping[str, Any] = RECIPE.to_json(),
        task: Mapping[str, Any] = TASK,
        **policy: object,
    ) -> str:
        """Define a model; return its name."""
        if "first_release" in policy:
            policy["first_release"] = FirstRelease(policy["first_release"])  # type: ignore[arg-type]
        if "forget" in policy:
            policy["forget"] = Forgetting(policy["forget"])  # type: ignore[arg-type]
        definition = definitions.ModelDefinition(
            name=name,
            dataset=dataset,
            architecture=ArchitectureSpec(architecture)
            if isinstance(architecture, str)
            else architecture,
            recipe=recipe,
            policy=Policy(**{"mechanism": "gradient_clipping", **policy}),  # type: ignore[arg-type]
            weights_source=WeightsSource.UPLOAD if upload else WeightsSource.TRAIN,
            task=task,
        )
        salt = self._split_salt(dataset, recipe.get("held_out_fraction", 0.1))
        with patch.object(definitions, "new_split_salt", return_value=salt):
            definitions.define_model(self.services.database, definition)
        return name

    def _split_salt(self, dataset: str, held_out_fraction: float) -> bytes:
        with self.transaction() as session:
            return fair_salt(session, dataset, held_out_fraction)

    def upload(self, name: str, content: bytes = b"uploaded") -> str:
        """Bring weights; return the id of their blob."""
        model = definitions.import_weights(
            self.services.database, self.services.blobs, name, content
        )
        assert model.imported_blob_id is not None
        return model.imported_blob_id

    def active_run(self, name: str = "model") -> str | None:
        with self.transaction() as session:
            run = repository.active_run(session, registry.model_named(session, name).id)
            return None if run is None else run.id

    def lease(self, name: str = "model") -> Held:
        run_id = self.active_run(name)
        assert run_id is not None
        with self.transaction() as session:
            row = runs.lease(session, run_id, lease_s=LEASE_S)
            assert row is not None
            return Held(row.id, row.fencing_token)

    def beat(self, held: Held, **progress: object) -> None:
        """Tell of a run's progress, as its worker does."""
        with self.transaction() as session:
            runs.heartbeat(session, held.run_id, held.token, lease_s=LEASE_S, progress=progress)

    def begin(self, held: Held) -> Begun:
        with self.transaction() as session:
            model = session.get_one(ModelRow, repository.run(session, held.run_id).model_id)
            head = model.architecture["name"] == linear_head.NAME
            dimension = weights.HEAD_DIMENSION if head else weights.NETWORK_DIMENSION
            shards = {shard.id for shard in datasets.shards(session, model.dataset_id)}
        selection = selections.begin(
            self.services.database,
            held.run_id,
            held.token,
            dimension=dimension,
            shards=shards,
        )
        return Begun.of(selection)

    def result(self, held: Held, content: bytes | None = None) -> publication.RunResult:
        """Return what a run that followed its plan would show."""
        with self.transaction() as session:
            run = repository.run(session, held.run_id)
            policy = Policy.from_json(session.get_one(ModelRow, run.model_id).policy)
            plan, kind = Plan.from_json(run.plan), run.kind
            number = registry.next_number(session, run.model_id)
        openly = kind == RunKind.TRAIN and policy.first_release is FirstRelease.AS_TRAINED
        basis = Basis.UNLEARNED if kind == RunKind.UNLEARN else Basis.CERTIFIED_RELEASE
        if content is None:
            content = weights.weights_of_version(number, head=plan.training in _OF_HEADS)
        return publication.RunResult(
            weights=self.write(held, content),
            tensors_sha256=tensors_sha256(content),
            phase=None if openly else _followed(plan, basis),
            evaluation=self.evaluation,
            phase_seconds={},
        )

    def write(self, held: Held, content: bytes) -> StoredBlob:
        """Write weights as the run's worker does."""
        with self.transaction() as session:
            blob_id = runs.reserve_blob(session, held.run_id, held.token)
        return self.services.blobs.fill(blob_id, content)

    def publish(self, held: Held, result: publication.RunResult | None = None) -> VersionRow:
        result = result or self.result(held)
        with self.transaction() as session:
            checked = publication.draft(session, run_id=held.run_id, result=result)
        with self.transaction() as session:
            return publication.publish(
                session,
                self.services.signer,
                run_id=held.run_id,
                fencing_token=held.token,
                result=result,
                check=publication.the_same_as(checked),
                examine=lambda _: None,
            )

    def work(self, name: str = "model") -> VersionRow:
        """Lease, begin and publish the model's waiting run."""
        return self.publish(self.begun(name))

    def train(self, name: str = "model", **definition: Any) -> VersionRow:
        """Define a model and carry its first run out."""
        return self.work(self.define(name, **definition))

    def begun(self, name: str = "model") -> Held:
        """Lease and begin the model's waiting run."""
        held = self.lease(name)
        self.begin(held)
        return held

    def unlearn(self, name: str = "model") -> VersionRow:
        """Carry out the run that a model's due obligations need."""
        self.dispatch()
        return self.work(name)

    def give_up(
        self, held: Held, reason: str = "it broke", *, permanent: bool = True, attempts: int = 3
    ) -> None:
        with self.transaction() as session:
            row = runs.holder(session, held.run_id, held.token)
            runs.give_up_attempt(
                session, row, reason=reason, permanent=permanent, max_attempts=attempts
            )

    def dispatch(self) -> None:
        """Turn due obligations into runs, as the dispatcher does."""
        for model_id in scheduling.due_models(self.services.database):
            scheduling.schedule_model(self.services.database, model_id)

    def wait_for_a_lock(self, *, or_done: Future[Any] | None = None) -> None:
        """Wait until a transaction waits for another one, or something is done."""
        waiting = text(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )

        def is_waiting() -> bool:
            if or_done is not None and or_done.done():
                return True
            with self.transaction() as session:
                return bool(session.scalar(waiting))

        until(is_waiting)

    def waiting(self, topic: outbox.Topic) -> list[OutboxRow]:
        """Return what waits in the outbox, due or not."""
        with self.transaction() as session:
            return list(session.scalars(select(OutboxRow).where(OutboxRow.topic == topic)))

    # Requests

    def forget(self, *records: str, subjects: Sequence[str] = (), **more: str) -> str:
        """Submit a request; return its id."""
        named = {"dataset": DATASET, **more}
        asked = NewForgetRequest(record_ids=records, subject_ids=subjects, **named)
        with self.transaction() as session:
            row, _ = self.services.acceptance.submit(session, asked, api_key_id=self.key_id)
            return row.id

    def cancel(self, request_id: str) -> None:
        with self.transaction() as session:
            self.services.forget_requests.cancel(session, request_id)

    def request(self, request_id: str) -> ForgetRequestRow:
        with self.transaction() as session:
            return repository.request(session, request_id)

    def obligations(self, request_id: str) -> list[ObligationRow]:
        with self.transaction() as session:
            return list(repository.obligations_of_request(session, request_id))

    # Facts

    def model(self, name: str = "model") -> ModelRow:
        with self.transaction() as session:
            return registry.model_named(session, name)

    def run(self, run_id: str) -> RunRow:
        with self.transaction() as session:
            return repository.run(session, run_id)

    def runs(self) -> list[RunRow]:
        with self.transaction() as session:
            return list(session.scalars(select(RunRow).order_by(RunRow.created_at)))

    def membership(self, name: str = "model") -> Membership:
        """Return what the model has learned from, or what its training has read before that."""
        model = self.model(name)
        membership = membership_of(model)
        if membership is None:
            with self.transaction() as session:
                run = repository.latest_run(session, model.id, RunKind.TRAIN)
                membership = None if run is None else membership_of_run(model, run)
        assert membership is not None
        return membership

    def record(self, session: Session, record_id: str, named: str = DATASET) -> RecordRow:
        """Return the record that was pushed last with an id."""
        return self._records(session, [record_id], named)[record_id]

    def _records(
        self, session: Session, ids: Sequence[str], named: str = DATASET
    ) -> dict[str, RecordRow]:
        dataset = datasets.dataset_named(session, named)
        pseudonyms = self.services.forget_requests.pseudonyms
        keys = [pseudonyms.record(dataset.id, each) for each in ids]
        rows = select(RecordRow).where(RecordRow.record_key.in_(keys)).order_by(RecordRow.seq)
        newest = {row.record_key: row for row in session.scalars(rows)}
        return {i: newest[key] for i, key in zip(ids, keys, strict=True)}

    def seqs(self, *ids: str) -> set[int]:
        with self.transaction() as session:
            return {row.seq for row in self._records(session, ids).values()}

    def split(self, name: str = "model", *, first: int = 0) -> tuple[list[str], list[str]]:
        """Return the ids that the model trains on, and those that it holds out, of one push."""
        membership = self.membership(name)
        with self.transaction() as session:
            records = self._records(session, record_ids(first=first))
            held_out = {i: membership.is_held_out(record) for i, record in records.items()}
        return [i for i, out in held_out.items() if not out], [
            i for i, out in held_out.items() if out
        ]


def _followed(plan: Plan, basis: Basis) -> CertifyingPhase:
    """Return what a run reports that took the steps of its plan and drew the noise for them."""
    draws = draws_of(plan.mechanism, plan.parameters, basis=basis)
    drawn = sum(each.count for each in draws)
    framed = "initial_clip" in plan.parameters
    return CertifyingPhase(
        plan=plan,
        parameters=plan.parameters,
        frame={"centre": "initialisation_mean", "scale": dict.fromkeys(weights.NETWORK, 0.5)}
        if framed
        else None,
        tensors=tuple(weights.HEAD if plan.training in _OF_HEADS else weights.NETWORK),
        noise=NoiseSection(generator=SECURE_NOISE, grid=grid_of(plan.mechanism, draws), drawn=drawn)
        if draws
        else None,
        steps=_steps_of(plan),
        arithmetic=ARITHMETIC if plan.training is TrainingKind.EXACT else None,
    )


def _steps_of(plan: Plan) -> int:
    if plan.history is None or "history" not in plan.parameters:
        return int(plan.parameters.get("steps", 0))
    after = History.from_json(plan.parameters["history"])
    return after.steps - trained_history(plan).steps

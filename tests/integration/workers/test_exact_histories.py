"""Exact heads: what is released is what a service would release that never saw the forgotten.

Random histories of pushes, also again, forget requests, cancelled ones, new models, trainings,
archived models, runs that are cut short and sums whose key is lost. In the end every file's tensors
are compared with those of a service that was only ever given the retained records, and with what is
computed from all records anew. Ridge heads subtract what they read of a few shards on the way.
"""

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import ConflictError, RunInterruptedError
from app.domain.policy import Policy
from app.domain.states import WeightsSource
from app.evidence.certificates.weights_file import tensors_sha256
from app.ledger import runs
from app.ledger.models import definitions
from app.ledger.new_requests import NewForgetRequest
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import define_dataset
from app.runtime.processes.stopping import StopSignal
from demo.tables import record_table
from tests.support.arrays import array_schema, array_task
from tests.support.exact_heads import head_of, live_sums, released
from tests.support.logbook import faults
from workers import run
from workers.data import run_records
from workers.leases.lease import Lease
from workers.recompute import recompute
from workers.run import execute

ALL = {"held_out_fraction": 0.0}
SPLIT = {"held_out_fraction": 0.3}
SCHEMA = array_schema(6, subjects=False)
TASK = array_task(6, classes=3, offset=0.25, scale=0.5)
HEADS = {
    "ridge": ("ridge_head", ALL),
    "softmax": ("linear_head", ALL | {"weight_decay": 0.003}),
    "split": ("ridge_head", SPLIT),
    "trees": ("boosted_trees", ALL),
    "stopped": ("boosted_trees", SPLIT | {"patience": 2}),
}
KINDS = {kind: (ArchitectureSpec(name), recipe, {}) for kind, (name, recipe) in HEADS.items()}
NUMBERS = np.random.default_rng(3)
FEATURES = (NUMBERS.normal(size=(60, 6)) * 3).astype(np.float32)
FEATURES[7], FEATURES[11] = FEATURES[6], 1e30  # a duplicate, and one far out of every range
LABELS = NUMBERS.integers(0, 3, size=60)


class History:
    """A dataset with models of each kind, and what should be left of it."""

    kinds = KINDS
    features = FEATURES

    def __init__(self, workshop, name):
        self.workshop = workshop
        self.services = workshop.services
        self.dataset = name
        self.pushed = 0
        self.forgotten = set()
        self.arrival = []
        self.models = {}
        self.numbers = itertools.count()
        self.requests = []
        self.cancellable = None
        with workshop.transaction() as session:
            define_dataset(session, name=name, schema=SCHEMA)

    def push(self, numbers):
        """Push records: those that are forgotten are new ones, which come last."""
        self.forgotten -= set(numbers)
        self.arrival = [*(i for i in self.arrival if i not in numbers), *numbers]
        self.services.records.push(self.dataset, self.parquet(numbers))

    def parquet(self, numbers):
        return to_parquet(
            record_table(
                record_ids=[f"{self.dataset}-{i}" for i in numbers],
                labels=LABELS[numbers],
                features=self.features[numbers],
            )
        )

    def push_more(self, count):
        count = min(count, len(LABELS) - self.pushed)
        if count:
            self.push(list(range(self.pushed, self.pushed + count)))
            self.pushed += count

    def forget(self, numbers):
        numbers = [i for i in numbers if i < self.pushed and i not in self.forgotten]
        if not numbers:
            return
        self.forgotten |= set(numbers)
        ids = [f"{self.dataset}-{i}" for i in numbers]
        asked = NewForgetRequest(self.dataset, record_ids=ids, subject_ids=())
        with self.workshop.transaction() as session:
            key_id = self.workshop.key_id
            row, _ = self.services.acceptance.submit(session, asked, api_key_id=key_id)
            self.requests.append(row.id)
            self.cancellable = (row.id, set(numbers))
        for _, known in self.models.values():
            known -= set(numbers)

    def cancel(self, pushes):
        """Cancel the last request, if nothing was done about it; models still owe it."""
        if self.cancellable is None:
            return
        request, numbers = self.cancellable
        self.cancellable = None
        try:
            with self.workshop.transaction() as session:
                self.services.forget_requests.cancel(session, request)
        except ConflictError:  # it was certified at once
            return
        if pushes:
            self.push(sorted(numbers))

    def lose_sums(self, kind):
        """Lose the key of the sums of a model's present version."""
        name = self.of_kind(kind)
        head = None if name is None else head_of(self.workshop, name)
        if head is not None and head.statistics_blob_id is not None:
            self.services.blobs._keys.destroy(head.statistics_blob_id)

    def cut_short(self, kind):
        """Begin what is owed, and have it stopped right before it would be published."""
        name = self.of_kind(kind)
        self.workshop.dispatch()
        self.cancellable = None
        run_id = None if name is None else self.workshop.active_run(name)
        if run_id is None:
            return
        database = self.services.database
        lease = Lease.take(database, run_id, lease_s=30.0, stop=StopSignal())
        stopped = pytest.MonkeyPatch.context()
        with lease, stopped as patch, contextlib.suppress(RunInterruptedError):
            patch.setattr(run, "publish_result", _interrupted)
            execute(self.services, lease)
        with self.workshop.transaction() as session:
            runs.hand_back(session, runs.holder(session, lease.run_id, lease.fencing_token))

    def define(self, kind):
        name = f"{self.dataset}-{kind}-{next(self.numbers)}"
        architecture, recipe, policy = self.kinds[kind]
        definition = definitions.ModelDefinition(
            name=name,
            dataset=self.dataset,
            architecture=architecture,
            recipe=recipe,
            policy=Policy(**policy),
            weights_source=WeightsSource.TRAIN,
            task=TASK,
        )
        definitions.define_model(self.services.database, definition)
        self.models[name] = (kind, set(range(self.pushed)) - self.forgotten)
        self.work(name)
        return name

    def of_kind(self, kind):
        return next((name for name in reversed(self.models) if self.models[name][0] == kind), None)

    def retrain(self, kind):
        """Train the newest model of a kind anew, unless a forget request came before."""
        name = self.of_kind(kind)
        if name is None or self.pushed == len(self.forgotten):
            return
        self.answer()
        self.workshop.retrain(name)
        self.models[name] = (kind, set(range(self.pushed)) - self.forgotten)
        self.work(name)

    def archive(self, kind):
        name = self.of_kind(kind)
        if name is not None:
            self.workshop.archive(name)
            del self.models[name]

    def work(self, name):
        services = self.services
        while (run_id := self.workshop.active_run(name)) is not None:
            lease = Lease.take(services.database, run_id, lease_s=30.0, stop=StopSignal())
            with lease:
                execute(services, lease)

    def answer(self, _=None):
        """Do all that is owed, and erase what was forgotten."""
        self.cancellable = None
        self.workshop.dispatch()
        for name in self.models:
            self.work(name)
        self.services.complete_at_once(lambda _: self.requests)

    def left(self, name):
        """Return the records that a model should know, in the order of their arrival."""
        return [number for number in self.arrival if number in self.models[name][1]]

    def of_a_service_that_never_saw_the_forgotten(self, name):
        """Return the digest of the tensors that the retained records alone give."""
        afresh = History(self.workshop, f"afresh-{name}")
        afresh.push(self.left(name))
        return tensors_sha256(released(self.workshop, afresh.define(self.models[name][0])))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("push_more"), st.integers(1, 15)),
        st.tuples(st.just("define"), st.sampled_from(sorted(HEADS))),
        st.tuples(st.just("forget"), st.sets(st.integers(0, 59), min_size=1, max_size=8)),
        st.tuples(st.sampled_from(["retrain", "archive"]), st.sampled_from(sorted(HEADS))),
        st.tuples(st.just("cancel"), st.booleans()),
        st.tuples(st.sampled_from(["lose_sums", "cut_short"]), st.sampled_from(["ridge", "split"])),
        st.tuples(st.just("answer"), st.none()),
    ),
    max_size=10,
)
_counter = itertools.count()


@pytest.mark.parametrize(
    "histories",
    [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.nightly)],
)
def test_after_any_history_a_release_is_that_of_the_retained_records_alone(
    workshop, few, histories
):
    @given(events=EVENTS)
    @settings(
        max_examples=histories,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # a history that fails is short enough
        suppress_health_check=[HealthCheck.too_slow],
    )
    def holds(events):
        few.clear()
        require_releases_without_the_forgotten(workshop, events)
        assert any(0 < count < 10 for count in few)

    holds()


def _interrupted(*_):
    raise RunInterruptedError("cut short")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """How many records each run read that did not read all."""
    counts, read_records = [], run_records.read_records

    def reading(*args, **more):
        counts.append(len(args[3]))
        return read_records(*args, **more)

    monkeypatch.setattr(run_records, "read_records", reading)
    return counts


def require_releases_without_the_forgotten(workshop, events):
    history = History(workshop, f"people-{next(_counter)}")
    history.push_more(25)
    for kind in HEADS:
        history.define(kind)
    for what, detail in events:
        getattr(history, what)(detail)
    history.push_more(7)
    for kind in HEADS:  # from several pushes
        history.define(kind)
    for kind in HEADS:
        history.retrain(kind)
    history.forget([history.pushed - 2])
    history.answer()
    for name, (kind, _) in list(history.models.items()):
        if not history.left(name):
            assert head_of(workshop, name) is None
            continue
        if head_of(workshop, name) is None:  # all that it knew
            assert HEADS[kind][1]["held_out_fraction"]
            continue
        again = recompute(workshop.services, name)
        assert again.is_equal
        if HEADS[kind][1]["held_out_fraction"]:
            assert again.records <= len(history.left(name))
            continue
        assert again.records == len(history.left(name))
        expected = history.of_a_service_that_never_saw_the_forgotten(name)
        assert tensors_sha256(released(workshop, name)) == expected
    workshop.services.blobs.sweep()
    heads = sum(
        HEADS[kind][0] == "ridge_head" and head_of(workshop, name) is not None
        for name, (kind, _) in history.models.items()
    )
    assert live_sums(workshop, history.dataset) == heads
    assert faults(workshop.services) == []

"""Who waits for whom: pushes, plans and checks hold up nobody, whatever they take.

Each test holds something long open, in the middle, and has others go through meanwhile. Nothing
here is measured: what had to wait would wait until the test gives up.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient

from app.evidence import log
from app.ledger import selections
from app.ledger.models import policies
from app.planning import planner
from app.registry.datasets import repository as datasets
from app.registry.datasets import service
from app.registry.datasets.service import define_dataset
from app.registry.training_set import TrainingSet
from tests.support.arrays import array_schema
from tests.support.patience import PATIENCE_S
from tests.support.workshop import DATASET, RECORDS, TASK, Workshop, record_ids, records_parquet

OTHER = "others"


class Gate:
    """A call that stands still until it is let go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def stand(self) -> None:
        self.reached.set()
        assert self.go_on.wait(4 * PATIENCE_S)

    def before(self, work: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **named: object) -> object:
            if not self.reached.is_set():  # the first passage alone
                self.stand()
            return work(*args, **named)

        return wrapped


@contextmanager
def held(gate: Gate, work: Callable[[], object]) -> Iterator[Future[object]]:
    """Have work done in a thread, as far as its gate, while the block goes on."""
    with ThreadPoolExecutor(1) as thread:
        try:
            future = thread.submit(work)
            assert gate.reached.wait(PATIENCE_S)
            yield future
        finally:
            gate.go_on.set()
        future.result(PATIENCE_S)


@contextmanager
def in_time() -> Iterator[Callable[..., object]]:
    """Call things that must come to an end."""
    with ThreadPoolExecutor(8) as threads:
        yield lambda work, *args, **named: threads.submit(work, *args, **named).result(PATIENCE_S)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.go_on.set()


@pytest.fixture
def two(workshop: Workshop) -> Workshop:
    """Two datasets."""
    with workshop.transaction() as session:
        schema = array_schema(2)
        define_dataset(session, name=OTHER, schema=schema)
    workshop.services.records.push(OTHER, records_parquet(4))
    return workshop


@pytest.fixture
def pushing(two: Workshop, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """The next push stands still when all of its records are written."""
    monkeypatch.setattr(service, "adopt", gate.before(service.adopt))
    return two


def _forget(api: TestClient, dataset: str, record: str) -> int:
    body = {"dataset": dataset, "record_ids": [record]}
    return api.post("/v1/forget-requests", json=body).status_code


def test_a_push_holds_up_no_call_on_its_dataset_or_another(
    pushing: Workshop, api: TestClient, gate: Gate
) -> None:
    push = pushing.services.records.push
    with (
        in_time() as call,
        held(gate, lambda: push(DATASET, records_parquet(8, first=RECORDS))) as pushed,
    ):
        assert call(_forget, api, OTHER, "record-1") == 201
        assert call(_forget, api, DATASET, "record-2") == 201
        model = {
            "name": "meanwhile",
            "dataset": DATASET,
            "task": TASK,
            "architecture": {"name": "logistic"},
            "policy": {"mechanism": "gradient_clipping"},
        }
        assert call(api.post, "/v1/models", json=model).status_code == 201
        assert call(push, DATASET, records_parquet(2, first=900)).added == 2
        shown = call(api.get, f"/v1/datasets/{DATASET}").json()
        assert shown["records"] == RECORDS + 2 - 1
        assert not pushed.done()
    assert api.get(f"/v1/datasets/{DATASET}").json()["records"] == RECORDS + 2 - 1 + 8


def test_a_lane_that_is_held_holds_up_no_other_one(two: Workshop, api: TestClient) -> None:
    with in_time() as call, ThreadPoolExecutor(1) as thread:
        with two.transaction() as session:
            held_dataset = datasets.dataset_named(session, DATASET)
            datasets.lock_dataset(session, held_dataset.id)
            waiting = thread.submit(_forget, api, DATASET, "record-1")
            for record in record_ids(4):
                assert call(_forget, api, OTHER, record) == 201
            assert not waiting.done()
        assert waiting.result(PATIENCE_S) == 201


def test_a_training_that_reads_later_numbers_has_a_slower_push_take_new_ones(
    pushing: Workshop, gate: Gate
) -> None:
    """Numbers below what a model has read would make its records count as read."""
    push = pushing.services.records.push
    slow = record_ids(8, first=RECORDS)
    with held(gate, lambda: push(DATASET, records_parquet(8, first=RECORDS))):
        push(DATASET, records_parquet(2, first=900))
        pushing.define()
        pushing.begin(pushing.lease())
    through = pushing.membership().through
    assert max(pushing.seqs(*record_ids(2, first=900))) == through
    assert min(pushing.seqs(*slow)) > through


def test_two_pushes_of_the_same_records_add_them_once(pushing: Workshop, gate: Gate) -> None:
    content = records_parquet(8, first=RECORDS)
    push = pushing.services.records.push
    with ThreadPoolExecutor(1) as thread:
        with held(gate, lambda: push(DATASET, content)) as first:
            second = thread.submit(push, DATASET, content)
        results = [first.result(), second.result(PATIENCE_S)]
    assert sorted((result.added, result.already_present) for result in results) == [(0, 8), (8, 0)]


def test_a_training_leaves_out_what_was_pushed_after_it_read_the_shards(
    workshop: Workshop,
) -> None:
    workshop.define()
    with workshop.transaction() as session:
        dataset = datasets.dataset_named(session, DATASET)
        read = {shard.id for shard in datasets.shards(session, dataset.id)}
    workshop.push(4, first=RECORDS)
    lease = workshop.lease()

    services = workshop.services
    selection = selections.begin(
        services.database, lease.run_id, lease.token, dimension=6, shards=read
    )

    assert len(selection.retain) + len(selection.held_out) == RECORDS
    assert workshop.membership().through == max(workshop.seqs(*record_ids()))


@pytest.fixture
def planning(workshop: Workshop, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """A released model that owes something; from here on, the next plan takes its time."""
    workshop.train()
    owed = workshop.split()[0]
    workshop.forget(owed[0])
    monkeypatch.setattr(planner, "_chosen_quote", gate.before(planner._chosen_quote))
    return workshop


def _define(workshop: Workshop) -> object:
    return workshop.define("another")


def _schedule(workshop: Workshop) -> object:
    return workshop.dispatch()


def _change(workshop: Workshop) -> object:
    return policies.change_policy(workshop.services.database, "model", {"epsilon": 2.0})


@pytest.mark.parametrize("work", [_define, _schedule, _change])
def test_planning_holds_up_no_request(
    planning: Workshop, gate: Gate, work: Callable[[Workshop], object]
) -> None:
    train = planning.split()[0]
    with in_time() as call, held(gate, lambda: work(planning)):
        assert planning.request(call(planning.forget, train[1])).state == "accepted"
        with planning.transaction() as session:
            log.append(session, "test.noted")


def test_what_is_forgotten_while_a_run_is_planned_is_owed_by_the_next_one(
    workshop: Workshop, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.train()
    train = workshop.split()[0]
    early = workshop.forget(train[0])
    workshop.dispatch()
    lease = workshop.lease()
    monkeypatch.setattr(planner, "_chosen_quote", gate.before(planner._chosen_quote))
    with in_time() as call, held(gate, lambda: workshop.begin(lease)) as begun:
        late = call(workshop.forget, train[1])
    selection = begun.result()

    assert not selection.retain & workshop.seqs(train[0])  # type: ignore[attr-defined]
    assert selection.retain >= workshop.seqs(train[1])  # type: ignore[attr-defined]
    assert workshop.request(early).state == "unlearning"
    workshop.publish(lease)
    assert workshop.request(early).state == "certified"
    assert workshop.request(late).state == "accepted"
    assert [o.state for o in workshop.obligations(late)] == ["open"]


def test_a_policy_that_changed_while_a_run_was_planned_is_planned_for_again(
    planning: Workshop, gate: Gate
) -> None:
    with in_time() as call, held(gate, planning.dispatch):
        call(policies.change_policy, planning.services.database, "model", {"epsilon": 2.0})
    assert planning.active_run() is None
    planning.dispatch()
    run_id = planning.active_run()
    assert run_id is not None
    assert planning.run(run_id).plan["epsilon"] == 2.0


def test_what_is_forgotten_and_comes_back_while_a_run_is_planned_is_no_part_of_it(
    workshop: Workshop, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends for the runs to come alone: this one fixed its records before."""
    workshop.train()
    train = workshop.split()[0]
    fixed = workshop.seqs(*train[1:])
    workshop.forget(train[0])
    workshop.dispatch()
    lease = workshop.lease()
    monkeypatch.setattr(selections, "TrainingSet", gate.before(TrainingSet))
    with in_time() as call, held(gate, lambda: workshop.begin(lease)) as begun:
        for _ in range(2):
            workshop.cancel(call(workshop.forget, train[1]))
            call(workshop.push_again, train[1])
    selection = begun.result()

    assert selection.retain == fixed  # type: ignore[attr-defined]
    workshop.publish(lease)

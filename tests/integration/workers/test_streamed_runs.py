"""Runs whose records do not fit into memory: streamed to the same result, or refused in time."""

import itertools
import threading
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy

from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.errors import GoneError, LeaseLostError, RunFailedError, WriteRefusedError
from app.evidence.certificates.weights_file import tensors_sha256
from app.ledger import selections
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.repository import Stock
from app.registry.datasets.service import alter_dataset
from app.registry.datasets.tables import ShardRow
from app.runtime.processes.stopping import StopSignal
from app.storage.blobs import Blobs, doom
from tests.support.exact_heads import define_backbone, head_of, released
from tests.support.streamed import (
    FEATURES,
    RECORDS,
    TASK,
    confined,
    footprint,
    push_wide,
    too_little,
    wide_parquet,
)
from tests.support.workshop import Held, record_ids
from workers import run as run_module
from workers.data.memory import in_words
from workers.data.streaming import Streamed
from workers.leases.attempts import is_permanent
from workers.leases.lease import Lease
from workers.recompute import recompute
from workers.run import execute

RECIPE = {"epochs": 1, "batch_size": 16, "held_out_fraction": 0.2}
ENSEMBLE = ArchitectureSpec("ensemble", members=4, of=ArchitectureSpec("logistic"))


@pytest.fixture
def workshop(workshop):
    push_wide(workshop.services)
    return workshop


@pytest.fixture
def loaded(monkeypatch):
    """The data of the runs so far."""
    found = []
    load = run_module.load_records
    monkeypatch.setattr(
        run_module, "load_records", lambda *a, **k: found.append(load(*a, **k)) or found[-1]
    )
    yield found
    assert not [each for each in threading.enumerate() if each.name.startswith("read-ahead")]


def define(workshop, name="model", *, architecture="logistic", recipe=RECIPE, task=TASK, **policy):
    workshop.define(
        name, dataset="wide", task=task, architecture=architecture, recipe=recipe, **policy
    )


def carry_out(services, workshop, name="model"):
    run_id = workshop.active_run(name)
    with Lease.take(services.database, run_id, lease_s=30.0, stop=StopSignal()) as lease:
        execute(services, lease)
    return workshop.run(run_id)


def split(workshop):
    """Return the ids of the records that the model trains on, and of those that it holds out."""
    membership = workshop.membership()
    parts = [], []
    with workshop.transaction() as session:
        for name in record_ids(RECORDS):
            parts[membership.is_held_out(workshop.record(session, name, "wide"))].append(name)
    return parts


def streamed(workshop, name="model"):
    """Carry out a run that may not hold its records."""
    services = workshop.services
    with confined(services, too_little(footprint(services, name))) as smaller:
        return carry_out(smaller, workshop, name)


@pytest.mark.slow
def test_a_record_that_is_forgotten_as_a_run_begins_does_not_decide_how_it_reads_the_others(
    services, workshop, loaded, monkeypatch
):
    define(workshop, mechanism="retraining")
    carry_out(services, workshop)
    train, _ = split(workshop)
    workshop.forget(train[0], dataset="wide")
    workshop.dispatch()
    begin = selections.begin

    def begin_late(*arguments, **named):
        workshop.forget(train[1], dataset="wide")
        return begin(*arguments, **named)

    monkeypatch.setattr(selections, "begin", begin_late)
    made = footprint(services)
    without = replace(made, remembered=made.remembered - 1)
    allowed = next(each for each in itertools.count(too_little(without), 100) if without.fits(each))
    assert not made.fits(allowed)
    with confined(services, allowed) as smaller:
        assert carry_out(smaller, workshop).state == "published"
    assert not isinstance(loaded[-1].retain, Streamed)
    assert len(loaded[-1].retain) == len(train) - 2


@pytest.mark.parametrize(
    ("architecture", "mechanism"),
    [
        pytest.param("logistic", "gradient_clipping", marks=pytest.mark.slow),
        pytest.param("logistic", "model_clipping", marks=pytest.mark.nightly),
        pytest.param("logistic", "output_perturbation", marks=pytest.mark.nightly),
        pytest.param("logistic", "retraining", marks=pytest.mark.nightly),
        pytest.param("linear_head", "tracked_release", marks=pytest.mark.nightly),
        pytest.param("linear_head", "exact_training", marks=pytest.mark.nightly),
        pytest.param("ridge_head", "sufficient_statistics", marks=pytest.mark.nightly),
    ],
)
def test_a_streamed_lineage_is_trained_released_and_forgets(
    workshop, loaded, architecture, mechanism
):
    recipe = {"held_out_fraction": 0.2} if architecture == "ridge_head" else RECIPE
    define(workshop, architecture=architecture, recipe=recipe, mechanism=mechanism)
    assert streamed(workshop).state == "published"
    train, held_out = split(workshop)
    assert isinstance(loaded[0].retain, Streamed) or loaded[0].summed is not None
    assert len(loaded[0].retain) == (0 if loaded[0].summed else len(train))
    workshop.forget(train[0], dataset="wide")
    workshop.dispatch()
    if workshop.active_run() is not None:  # else what is released covers the request
        assert streamed(workshop).state == "published"
        assert len(loaded[1].retain) == (0 if loaded[1].summed else len(train) - 1)
    evaluation = head_of(workshop).evaluation
    assert evaluation["held_out_records"] == len(held_out)
    calibrated = "calibration_error" in evaluation["metrics"]
    assert calibrated == (architecture != "ridge_head")  # whose scores are no probabilities


@pytest.mark.parametrize(
    ("architecture", "mechanism"),
    [("linear_head", "exact_training"), ("ridge_head", "sufficient_statistics")],
)
def test_an_exact_head_is_the_same_file_streamed_and_in_memory(
    workshop, loaded, architecture, mechanism
):
    recipe = {"held_out_fraction": 0.0}
    for name in ("model", "twin"):
        define(workshop, name, architecture=architecture, recipe=recipe, mechanism=mechanism)
    assert streamed(workshop).state == "published"
    assert carry_out(workshop.services, workshop, "twin").state == "published"
    assert recompute(workshop.services, "model").is_equal
    one, other = (safetensors.numpy.load(released(workshop, name)) for name in ("model", "twin"))
    assert all(one[name].tobytes() == other[name].tobytes() for name in one.keys() | other.keys())


@pytest.mark.parametrize("public", [False, True])
def test_shards_of_before_and_after_an_alteration_are_streamed_together(workshop, loaded, public):
    with workshop.transaction() as session:
        alter_dataset(session, "wide", {"height": "float32?", "label": "int64?"})
    later = pq.read_table(pa.BufferReader(wide_parquet(RECORDS, RECORDS + 200)))
    heights = pa.array([None if i % 3 else i / 7 for i in range(200)], pa.float32())
    workshop.services.records.push("wide", to_parquet(later.append_column("height", heights)))
    height = {"name": "height", "kind": "number", "missing": 1, "flag_missing": True}
    task = TASK | {"inputs": [*TASK["inputs"], height]}
    head = ArchitectureSpec("linear_head", backbone=BackboneUse("public") if public else None)
    define_backbone(workshop, shape=(FEATURES + 2,), hidden=(300, 200))
    recipe, named = {"held_out_fraction": 0.0}, {"mechanism": "exact_training"}
    for name in ("model", "twin"):
        define(workshop, name, architecture=head, recipe=recipe, task=task, **named)
    assert streamed(workshop).state == "published"
    assert isinstance(loaded[0].retain, Streamed)
    workshop.forget("record-3", f"record-{RECORDS + 3}", dataset="wide")
    workshop.dispatch()
    assert streamed(workshop).state == "published"
    assert len(loaded[1].retain) == RECORDS + 198
    assert carry_out(workshop.services, workshop, "twin").state == "published"
    one, other = (released(workshop, name) for name in ("model", "twin"))
    assert tensors_sha256(one) == tensors_sha256(other)
    assert recompute(workshop.services, "model").is_equal


def test_a_frozen_backbones_features_are_stored_before_and_streamed(workshop, loaded):
    define_backbone(workshop, shape=(FEATURES,), hidden=(300, 200))
    head = ArchitectureSpec("linear_head", backbone=BackboneUse("public"))
    define(workshop, architecture=head, mechanism="tracked_release")
    assert streamed(workshop).state == "published"
    assert isinstance(loaded[0].retain, Streamed)


def test_private_training_is_refused_with_both_numbers(workshop, monkeypatch):
    """A Poisson sample of a window is none of all records: its certificate would be wrong."""
    define(workshop, mechanism="dp_sgd")
    made = footprint(workshop.services)
    monkeypatch.setattr(Blobs, "read", lambda *_: pytest.fail("read a record"))
    with pytest.raises(RunFailedError, match="DP-SGD samples all records") as caught:
        streamed(workshop)
    assert in_words(made.in_memory().total) in str(caught.value)
    assert in_words(too_little(made)) in str(caught.value)
    assert "EXPUNGE_WORKER_MEMORY" in str(caught.value)
    assert is_permanent(caught.value)


def test_what_cannot_even_be_streamed_is_refused_before_a_record_is_read(workshop, monkeypatch):
    define(workshop)
    least = footprint(workshop.services).streamed(held=0, evaluated=0).total
    monkeypatch.setattr(Blobs, "read", lambda *_: pytest.fail("read a record"))
    with (
        confined(workshop.services, least) as smaller,
        pytest.raises(RunFailedError, match="which streams its records") as caught,
    ):
        carry_out(smaller, workshop)
    said = str(caught.value)
    assert f"may use {in_words(least)}" in said
    assert "two windows of records" in said
    assert "lower batch_size" in said


def test_members_with_what_they_are_measured_on_are_held_or_refused_before_a_record_is_read(
    workshop, monkeypatch
):
    define(workshop, architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    one = footprint(workshop.services)
    whole = replace(one, dimension=ENSEMBLE.members * one.dimension)
    enough = whole.of_member(RECORDS // 2, measured=RECORDS // 4).total
    small = whole.of_member(RECORDS // 8, measured=RECORDS // 8).total
    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "read", lambda *_: pytest.fail("read a record"))
        with (
            confined(workshop.services, small) as smaller,
            pytest.raises(RunFailedError, match="a member of the ensemble") as caught,
        ):
            carry_out(smaller, workshop)
    said = str(caught.value)
    assert f"may use {in_words(small)}: define a model with more members" in said
    assert "records to evaluate on" in said
    weights = in_words(whole.of_member(0, measured=0).parts["weights"])
    assert f"(weights {weights}, " in said  # of all members, which the run measures together
    assert is_permanent(caught.value)
    workshop.give_up(Held(workshop.active_run(), token=1), permanent=False)
    with confined(workshop.services, enough) as larger:
        assert carry_out(larger, workshop).state == "published"


def test_forgotten_records_and_shards_do_not_decide_how_records_are_batched(workshop):
    """Another window would be another law of batches: a trace of what only one world holds."""
    define(workshop)
    before = footprint(workshop.services)
    workshop.forget("record-7", "record-8", dataset="wide")
    after = footprint(workshop.services)
    assert after.stock.rows == before.stock.rows == before.remembered == after.remembered + 2
    elsewhere = replace(after, stock=Stock(rows=after.remembered, most_rows=9, most_bytes=9))
    for allowed in range(1000, 2 * before.in_memory().total, 1000):
        assert after.fits(allowed) == elsewhere.fits(allowed)
        assert after.window(allowed) == elsewhere.window(allowed)


def test_what_fits_is_held_in_memory(workshop, loaded):
    define(workshop)
    services = workshop.services
    with confined(services, 2 * footprint(services).in_memory().total) as enough:
        assert carry_out(enough, workshop).state == "published"
    assert not isinstance(loaded[0].retain, Streamed)


def in_the_middle(monkeypatch, act):
    """Do something once, in the noisy steps of the next run."""
    done = []
    original = run_module.epsilon_reporter

    def reporter(*arguments):
        report = original(*arguments)

        def reporting(step, *others):
            if not done:
                done.append(act())
            report(step, *others)

        return reporting

    monkeypatch.setattr(run_module, "epsilon_reporter", reporter)
    return done


def after_a_batch(monkeypatch, act):
    """Do something once, after the first batch of the next training."""
    done = []
    original = Streamed.forever

    def forever(self, *arguments, **named):
        batches = original(self, *arguments, **named)
        yield next(batches)
        if not done:
            done.append(act())
        yield from batches

    monkeypatch.setattr(Streamed, "forever", forever)
    return done


OPENLY = {"first_release": "as_trained", "mechanism": "retraining"}


def test_a_shard_that_vanishes_ends_the_attempt(workshop, loaded, monkeypatch):
    define(workshop, recipe=RECIPE | {"epochs": 4}, **OPENLY)  # more than is read ahead

    def lose():
        with workshop.transaction() as session:
            shard = session.query(ShardRow).order_by(ShardRow.rows.desc()).first()
            doom(session, shard.blob_id)
        workshop.services.blobs.sweep()
        return True

    done = after_a_batch(monkeypatch, lose)
    with pytest.raises(GoneError) as caught:
        streamed(workshop)
    assert done
    assert not is_permanent(caught.value)
    assert workshop.model().head_version_id is None


@pytest.mark.slow
def test_records_pushed_meanwhile_are_left_out(workshop, loaded, monkeypatch):
    define(workshop, **OPENLY)
    done = after_a_batch(
        monkeypatch,
        lambda: workshop.services.records.push("wide", wide_parquet(RECORDS, RECORDS + 100)),
    )
    assert streamed(workshop).state == "published"
    assert done
    train, held_out = split(workshop)
    assert (len(loaded[0].retain), len(loaded[0].held_out)) == (len(train), len(held_out))


@pytest.mark.slow
def test_an_erasure_meanwhile_rewrites_shards_that_are_read_again(workshop, loaded, monkeypatch):
    """Of a record that this run does not use; its shard is another object afterwards."""
    define(workshop, **OPENLY)
    assert carry_out(workshop.services, workshop).state == "published"
    train, _ = split(workshop)
    workshop.forget(train[0], dataset="wide")
    workshop.retrain()
    blobs = []

    def erase():
        with workshop.transaction() as session:
            blobs.append({shard.blob_id for shard in session.query(ShardRow).all()})
            seq = workshop.record(session, train[0], "wide").seq
            assert workshop.services.records.erase(session, [seq]) == 1
            blobs.append({shard.blob_id for shard in session.query(ShardRow).all()})
        workshop.services.blobs.sweep()

    after_a_batch(monkeypatch, erase)
    assert streamed(workshop).state == "published"
    assert len(blobs[0] - blobs[1]) == 1
    assert len(loaded[-1].retain) == len(train) - 1


def lose_lease(data):
    """Let the heartbeat find that another worker holds the run."""
    data.retain._check.__self__._lost.set()


def test_reading_stops_with_the_lease(workshop, loaded, monkeypatch):
    define(workshop, parameters={"steps": 400}, budget_epochs=4)
    done = in_the_middle(monkeypatch, lambda: lose_lease(loaded[0]))
    with pytest.raises(LeaseLostError):
        streamed(workshop)
    assert done


def test_nothing_can_be_written_while_records_are_streamed(workshop, loaded, monkeypatch, tmp_path):
    define(workshop, parameters={"steps": 200}, budget_epochs=4)
    in_the_middle(monkeypatch, lambda: (tmp_path / "weights").write_bytes(b"a weight"))
    with pytest.raises(WriteRefusedError):
        streamed(workshop)
    assert not (tmp_path / "weights").exists()

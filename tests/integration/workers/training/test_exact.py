"""Exact heads: what is stored beside their weights, what is refused, and policies that change."""

import json
from importlib.metadata import version

import numpy as np
import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.errors import ConflictError, GoneError, InvalidInputError, PlanError
from app.domain.states import BlobState
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.weights_file import tensors_sha256
from app.ledger.models.endings import delete_model
from app.ledger.models.policies import change_policy
from app.operations import erase_check
from app.operations.erase_check import Stores
from app.operations.storage_check import Verdict
from app.registry import repository as registry
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import define_dataset
from app.registry.datasets.tables import FeatureShardRow
from app.registry.statistics_file import KIND, StatisticsFile
from app.registry.tables import VersionRow
from app.runtime.locations import redis_connection
from app.storage.blobs import adopt
from app.storage.tables import BlobRow
from demo.tables import record_table
from tests.support.arrays import array_schema, array_task
from tests.support.exact_heads import (
    carry_out,
    define_backbone,
    give_up_features,
    head_of,
    live_sums,
    released,
)
from tests.support.logbook import faults
from tests.support.representatives import mostly_nightly
from tests.support.workshop import DATASET, RECORDS
from workers.data import run_records
from workers.data.features import FeatureReader
from workers.recompute import recompute
from workers.training.part import Part
from workers.training.tasks.task import INPUTS

runner = CliRunner()
QUARTER = {"held_out_fraction": 0.25}


# On a frozen backbone


def push_wide(workshop, dataset, numbers):
    """Push records of eight features; a number stands for the same record everywhere."""
    with workshop.transaction() as session:
        define_dataset(session, name=dataset, schema=array_schema(8, subjects=False))
    table = record_table(
        record_ids=[f"record-{i}" for i in numbers],
        labels=np.array(numbers) % 2,
        features=np.random.default_rng(5).normal(size=(50, 8)).astype(np.float32)[numbers],
    )
    workshop.services.records.push(dataset, to_parquet(table))


@pytest.mark.parametrize("head", mostly_nightly(["ridge_head", "linear_head"], "ridge_head"))
def test_features_that_were_stored_change_nothing(workshop, head):
    """Whether they were, when, and beside which other records."""
    define_backbone(workshop, shape=(8,))
    policy = {
        "architecture": ArchitectureSpec(head, backbone=BackboneUse("public")),
        "task": array_task(8),
        "recipe": {"held_out_fraction": 0},
        "mechanism": "auto",
    }
    everything, forgotten = range(41), (0, 2, 17)
    push_wide(workshop, "wide", list(everything[:40]))
    push_wide(workshop, "wide", [40])  # alone in its shard
    workshop.define(dataset="wide", **policy)
    carry_out(workshop)
    answered(workshop, *(f"record-{i}" for i in forgotten), dataset="wide")
    stored = released(workshop)
    give_up_features(workshop)
    assert recompute(workshop.services, "model").is_equal

    push_wide(workshop, "retained", [i for i in everything if i not in forgotten])
    workshop.define("twin", dataset="retained", **policy)
    carry_out(workshop, "twin")
    assert tensors_sha256(released(workshop, "twin")) == tensors_sha256(stored)


@pytest.mark.parametrize("head", mostly_nightly(["ridge_head", "linear_head"], "ridge_head"))
def test_a_record_that_is_pushed_again_is_learned_by_the_next_training_and_not_before(
    workshop, head
):
    define_backbone(workshop, shape=(2,))
    architecture = ArchitectureSpec(head, backbone=BackboneUse("public"))
    workshop.define(architecture=architecture, recipe={"held_out_fraction": 0}, mechanism="auto")
    carry_out(workshop)
    workshop.cancel(workshop.forget("record-5"))
    workshop.push_again("record-5")
    answered(workshop, "record-9")
    without = recompute(workshop.services, "model")
    assert (without.records, without.is_equal) == (RECORDS - 2, True)
    workshop.retrain()
    carry_out(workshop)
    give_up_features(workshop)
    anew = recompute(workshop.services, "model")
    assert (anew.records, anew.is_equal) == (RECORDS - 1, True)
    assert faults(workshop.services) == []


def test_features_that_are_not_of_one_record_alone_are_found_when_computed_again(
    workshop, monkeypatch
):
    """A backbone that slipped through every trial: it added something to what is stored."""
    define_backbone(workshop, shape=(2,))
    architecture = ArchitectureSpec("ridge_head", backbone=BackboneUse("public"))
    workshop.define(architecture=architecture, recipe={"held_out_fraction": 0}, mechanism="auto")
    with monkeypatch.context() as spoiling:
        real = FeatureReader._compute
        spoiling.setattr(
            FeatureReader, "_compute", lambda self, raw: real(self, raw) + len(raw.seqs)
        )
        carry_out(workshop)
    with pytest.raises(ConflictError, match="computed again in another order"):
        recompute(workshop.services, "model")


# What is stored beside the weights


def statistics(workshop):
    """Return the states of all objects with sums, and what the head's name."""
    with workshop.transaction() as session:
        rows = session.query(BlobRow).filter(BlobRow.kind == KIND)
        states = sorted(BlobState(row.state) for row in rows)
    head = head_of(workshop)
    if head is None:
        return states, None
    return states, StatisticsFile.from_bytes(workshop.services.blobs.read(head.statistics_blob_id))


def solved(workshop, **more):
    workshop.define(architecture="ridge_head", recipe=QUARTER, mechanism="auto", **more)
    carry_out(workshop)
    return workshop.split()


def answered(workshop, *ids, **more):
    request = workshop.forget(*ids, **more)
    workshop.dispatch()
    assert workshop.active_run() is not None, workshop.obligations(request)[0].failure_reason
    carry_out(workshop)
    workshop.services.complete_at_once(lambda _: [request])
    return workshop.request(request).state


def test_the_sums_are_of_the_retained_records_and_replaced_with_their_key(workshop):
    train, held_out = solved(workshop)
    _, first = statistics(workshop)
    assert set(first.seqs.tolist()) == workshop.seqs(*train)
    assert held_out
    old = head_of(workshop).statistics_blob_id
    assert answered(workshop, train[0], train[5]) == "completed"
    states, second = statistics(workshop)
    assert set(second.seqs.tolist()) == workshop.seqs(*train) - workshop.seqs(train[0], train[5])
    assert states == [BlobState.LIVE, BlobState.SHREDDED]
    with pytest.raises(GoneError):
        workshop.services.blobs.read(old)
    assert faults(workshop.services) == []


def test_a_version_is_shredded_when_its_sums_are_too(workshop):
    train, _ = solved(workshop)
    answered(workshop, train[0])
    with workshop.transaction() as session:
        versions = registry.released_versions(session, workshop.model().id)
        assert [version.state for version in versions] == ["certified", "shredded"]


@pytest.mark.parametrize("lost", mostly_nightly(["blob", "row"], "blob"))
def test_lost_sums_are_made_anew(workshop, lost):
    train, _ = solved(workshop)
    with workshop.transaction() as session:
        version = session.get_one(VersionRow, head_of(workshop).id)
        if lost == "blob":
            workshop.services.blobs._keys.destroy(version.statistics_blob_id)
        else:
            version.statistics_blob_id = None
    answered(workshop, train[0])
    assert recompute(workshop.services, "model").is_equal
    _, now = statistics(workshop)
    assert set(now.seqs.tolist()) == workshop.seqs(*train[1:])


@pytest.fixture
def passes(monkeypatch):
    """How many records each reading asked for; of a reading of all shards, None."""
    found = []
    some, everything = run_records.read_records, run_records.read_shards

    def noting(read, count):
        def reading(*args, **more):
            found.append(count(args))
            return read(*args, **more)

        return reading

    monkeypatch.setattr(run_records, "read_records", noting(some, lambda args: len(args[3])))
    monkeypatch.setattr(run_records, "read_shards", noting(everything, lambda _: None))
    return found


@pytest.mark.parametrize("held_out", [0.0, 0.25])
def test_a_run_reads_what_left_and_what_it_evaluates_on(workshop, passes, held_out):
    recipe = {"held_out_fraction": held_out}
    workshop.define(architecture="ridge_head", recipe=recipe, mechanism="auto")
    carry_out(workshop)
    assert passes == [None]
    train, evaluated = workshop.split()
    workshop.push(5, first=100)  # that no version has learned from
    answered(workshop, train[0], train[5])
    assert passes == [None, 2 + len(evaluated)]
    with workshop.transaction() as session:
        evaluation = session.get_one(VersionRow, head_of(workshop).id).evaluation
    assert evaluation["held_out_records"] == len(evaluated)
    assert recompute(workshop.services, "model").is_equal


def features_that_differ(workshop):
    """Store other features than those whose sums are stored."""
    blobs = workshop.services.blobs
    with workshop.transaction() as session:
        for row in session.query(FeatureShardRow).all():
            part = Part.of_bytes(blobs.read(row.blob_id))
            changed = (part.tensors[INPUTS] + 0.5).astype(np.float16)
            other = Part(part.seqs, {**part.tensors, INPUTS: changed})
            blob = blobs.put(session, "features", other.to_bytes())
            adopt(session, blob.id)
            row.blob_id = blob.id


def a_wrong_shard(workshop):
    workshop.push(1, first=100)
    with workshop.transaction() as session:
        elsewhere = workshop.record(session, "record-100").shard_id
        workshop.record(session, "record-1").shard_id = elsewhere


@pytest.mark.parametrize("surprise", [features_that_differ, a_wrong_shard])
def test_what_cannot_be_subtracted_is_summed_anew(workshop, passes, surprise):
    define_backbone(workshop)
    architecture = ArchitectureSpec("ridge_head", backbone=BackboneUse("public"))
    workshop.define(architecture=architecture, recipe={"held_out_fraction": 0}, mechanism="auto")
    carry_out(workshop)
    surprise(workshop)
    workshop.forget("record-1")
    workshop.dispatch()
    carry_out(workshop)
    assert passes == [None, 1, None]
    if surprise is features_that_differ:
        with pytest.raises(ConflictError, match="computed again in another order"):
            recompute(workshop.services, "model")
        return
    again = recompute(workshop.services, "model")
    assert (again.records, again.is_equal) == (RECORDS - 1, True)


def test_an_emptied_model_leaves_no_sums(workshop):
    train, _ = solved(workshop)
    workshop.forget(*train)
    workshop.dispatch()
    workshop.services.blobs.sweep()
    assert statistics(workshop) == ([BlobState.SHREDDED], None)


@pytest.mark.parametrize("first_release", ["certify", "none"])
def test_an_archived_or_deleted_model_leaves_no_sums(workshop, first_release):
    solved(workshop, first_release=first_release)
    if first_release == "none":
        with workshop.transaction() as session:
            delete_model(session, "model")
    else:
        workshop.archive()
    workshop.services.blobs.sweep()
    assert live_sums(workshop, DATASET) == 0
    assert faults(workshop.services) == []


def test_a_retraining_makes_its_own_sums_with_what_came_since(workshop):
    train, _ = solved(workshop)
    workshop.cancel(workshop.forget(train[0]))
    workshop.push_again(train[0])
    answered(workshop, train[1])
    assert workshop.seqs(train[0]).isdisjoint(statistics(workshop)[1].seqs.tolist())
    workshop.retrain()
    carry_out(workshop)
    workshop.services.blobs.sweep()
    states, now = statistics(workshop)
    assert set(now.seqs.tolist()) == workshop.seqs(train[0], *train[2:])
    assert states.count(BlobState.LIVE) == 1
    assert set(states) == {BlobState.LIVE, BlobState.SHREDDED}
    again = recompute(workshop.services, "model")
    assert again.is_equal
    assert again.records == len(train) - 1
    assert faults(workshop.services) == []


def test_erase_check_finds_a_record_in_sums(workshop):
    train, _ = solved(workshop)
    stale = workshop.services.blobs.read(head_of(workshop).statistics_blob_id)
    answered(workshop, train[0])

    def found():
        findings = []
        stores = Stores(
            workshop.services.database,
            workshop.services.blobs,
            redis_connection(workshop.services.settings),
            workshop.services.pseudonyms,
            workshop.services.settings.data_dir / "log",
        )
        erase_check.check(stores, dataset=DATASET, owners_id=train[0], report=findings.append)
        return [str(each) for each in findings if each.verdict is Verdict.FAULT]

    assert found() == []
    read = workshop.services.blobs.read
    statistics_blob = head_of(workshop).statistics_blob_id
    workshop.services.blobs.read = lambda blob: stale if blob == statistics_blob else read(blob)
    assert any("statistics of version" in each for each in found())


# What is refused


def test_imported_weights_are_refused(workshop):
    with pytest.raises(InvalidInputError, match="takes no weights"):
        workshop.define(architecture="ridge_head", recipe=QUARTER, mechanism="auto", upload=True)
    with pytest.raises(PlanError, match="trained here"):
        workshop.define(
            architecture="linear_head", recipe=QUARTER, mechanism="exact_training", upload=True
        )


@pytest.mark.parametrize("mechanism", ["gradient_clipping", "retraining", "tracked_release"])
def test_a_ridge_head_takes_no_other_mechanism(workshop, mechanism):
    with pytest.raises(PlanError, match="solved, not trained"):
        workshop.define(architecture="ridge_head", recipe=QUARTER, mechanism=mechanism)


def test_a_ridge_head_is_not_released_as_trained(workshop):
    with pytest.raises(InvalidInputError, match="exact from their first release"):
        workshop.define(architecture="ridge_head", recipe=QUARTER, first_release="as_trained")


def test_a_ridge_head_takes_no_recipe_but_its_split(workshop):
    with pytest.raises(InvalidInputError, match="'epochs'"):
        workshop.define(architecture="ridge_head", recipe={"epochs": 3})


def test_only_functions_of_the_records_are_computed_again(workshop):
    workshop.define("network")
    carry_out(workshop, "network")
    with pytest.raises(ConflictError, match="no function of the records"):
        recompute(workshop.services, "network")
    train, _ = solved(workshop)
    workshop.forget(train[0])
    with pytest.raises(ConflictError, match="to be forgotten"):
        recompute(workshop.services, "model")


@pytest.mark.slow  # it starts two programs that import PyTorch
def test_the_command_compares_the_files(workshop):
    train, _ = solved(workshop)
    answer = runner.invoke(app, ["model", "recompute", "model", "--json"])
    assert answer.exit_code == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["equal"]
    assert found["released"] == found["computed"] == head_of(workshop).sha256
    assert (found["version"], found["records"]) == (1, len(train))
    workshop.forget(train[0])
    answer = runner.invoke(app, ["model", "recompute", "model"])
    assert (answer.exit_code, answer.stdout) == (1, "")


@pytest.mark.parametrize("architecture", ["ridge_head", "linear_head"])
def test_heads_compute_with_numbers_not_tokens(workshop, architecture):
    schema = array_schema(4, "int32")
    with workshop.transaction() as session:
        define_dataset(session, name="words", schema=schema)
    with pytest.raises(InvalidInputError, match="holds tokens"):
        workshop.define(
            architecture=architecture,
            dataset="words",
            task=array_task(4, dtype="int32", vocabulary=9),
            recipe=QUARTER,
            mechanism="auto",
        )


# Policies that change


def certificate(workshop):
    with workshop.transaction() as session:
        row = session.get_one(CertificateRow, head_of(workshop).certificate_id)
        return statement_of(row.envelope)["predicate"]


def test_a_head_that_was_trained_with_noise_is_exact_from_its_next_release_on(workshop):
    workshop.define(architecture="linear_head", recipe=QUARTER, mechanism="tracked_release")
    carry_out(workshop)
    train, _ = workshop.split()
    *several, another, last = train
    several = several[:12]
    change_policy(workshop.services.database, "model", {"mechanism": "exact_training"})
    answered(workshop, *several)
    predicate = certificate(workshop)
    assert predicate["guarantee"]["kind"] == "exact"
    assert predicate["guarantee"]["adaptive"]
    assert predicate["forgotten"]["before_training"] == len(several)
    assert "float64 in one thread" in predicate["software"]["arithmetic"]
    assert workshop.model().tracking is None
    assert recompute(workshop.services, "model").is_equal
    with pytest.raises(PlanError, match="history is known from the start"):
        change_policy(workshop.services.database, "model", {"mechanism": "tracked_release"})
    change_policy(workshop.services.database, "model", {"mechanism": "retraining"})
    answered(workshop, another)
    lineage = workshop.model().tracking["history"]["recipe"]
    assert lineage["batch_size"] * lineage["batches"] == len(train) - len(several) - 1
    change_policy(workshop.services.database, "model", {"mechanism": "tracked_release"})
    answered(workshop, last)
    assert certificate(workshop)["guarantee"]["kind"] == "gaussian"
    assert certificate(workshop)["forgotten"]["before_training"] == len(several) + 1
    assert faults(workshop.services) == []


@pytest.mark.parametrize(
    "mechanism",
    mostly_nightly(
        ["exact_training", "gradient_clipping", "output_perturbation"], "gradient_clipping"
    ),
)
def test_requests_are_accepted_once_a_lineage_is_not_tracked_any_more(workshop, api, mechanism):
    workshop.define(architecture="linear_head", recipe=QUARTER, mechanism="tracked_release")
    carry_out(workshop)
    train, _ = workshop.split()
    change_policy(workshop.services.database, "model", {"mechanism": mechanism})
    answered(workshop, *train[:12])
    assert workshop.model().tracking is None
    body = {"dataset": DATASET, "record_ids": [train[12]]}
    for path in ("/v1/forget-requests/preview", "/v1/forget-requests"):
        answer = api.post(path, json=body)
        assert answer.is_success, answer.text


def test_another_regularisation_holds_from_the_next_release_on(workshop):
    train, _ = solved(workshop)
    parameters = {"regularisation": 0.125}
    changes = {"mechanism": "sufficient_statistics", "parameters": parameters}
    change_policy(workshop.services.database, "model", changes)
    answered(workshop, train[0])
    assert certificate(workshop)["mechanism"]["parameters"]["regularisation"] == 0.125
    assert recompute(workshop.services, "model").is_equal


@pytest.mark.parametrize(("name", "names_it"), [("boosted_trees", True), ("ridge_head", False)])
def test_trees_name_the_library_that_grew_them_and_heads_do_not(workshop, name, names_it):
    workshop.define(architecture=name, mechanism="auto", recipe=QUARTER)
    carry_out(workshop)
    arithmetic = certificate(workshop)["software"]["arithmetic"]
    assert (f"scikit-learn {version('scikit-learn')}" in arithmetic) is names_it

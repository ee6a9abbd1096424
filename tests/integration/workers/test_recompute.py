"""Networks that follow from their records and a seed are computed again, bit for bit."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch
from fastapi.testclient import TestClient
from sqlalchemy import select
from typer.testing import CliRunner

from app.cli.main import app
from app.domain.architectures import ArchitectureSpec, BackboneUse, by_member
from app.domain.errors import ConflictError, CorruptObjectError, GoneError, InvalidInputError
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.tables import CertificateRow
from app.ledger.leaving_out import provenance_of
from app.ledger.selections import begin
from app.planning.mechanisms.catalogue import MECHANISMS
from app.registry import repository as registry
from app.registry.datasets.tables import RecordRow
from app.registry.tables import VersionRow
from tests.support.arrays import array_task
from tests.support.exact_heads import carry_out, define_backbone, head_of, released
from tests.support.representatives import mostly_nightly
from tests.support.shops import push_shops
from tests.support.tasks_by_mechanism import pairs
from tests.support.workshop import RECIPE, Workshop, records_parquet
from workers.data import run_records
from workers.data.member_records import MemberRecords
from workers.mechanisms import boosting
from workers.mechanisms.ensembles import training
from workers.recompute import recompute, recompute_from, write_kit
from workers.training.networks.network import Network
from workers.training.seed import Seed

runner = CliRunner()
MLP = ArchitectureSpec("mlp", {"hidden": [5]})
MEMBERS = 4
ENSEMBLE = ArchitectureSpec("ensemble", members=MEMBERS, of=MLP)
LINEAR = replace(ENSEMBLE, of=ArchitectureSpec("mlp", {"hidden": []}))
"""Always learns: a network whose units are all dead is the same from records in any order."""
GROWN = replace(ENSEMBLE, of=ArchitectureSpec("boosted_trees", {"trees": 9, "smallest_leaf": 1}))
SEEDED = {"retraining", "sharded_retraining"}


def known_of(workshop):
    services = workshop.services
    return provenance_of(services.database, services.blobs, head_of(workshop).id)


def forget(workshop, *records):
    workshop.forget(*records)
    workshop.dispatch()
    carry_out(workshop)


def predicate_of(workshop):
    with workshop.transaction() as session:
        row = session.get_one(CertificateRow, head_of(workshop).certificate_id)
        return statement_of(row.envelope)["predicate"]


def ensemble(workshop, forget="retrain", architecture=LINEAR):
    recipe = RECIPE.to_json() if architecture is LINEAR else {}
    workshop.define(
        architecture=architecture, mechanism="sharded_retraining", forget=forget, recipe=recipe
    )
    carry_out(workshop)
    return workshop.split()[0]


def test_a_whole_network_is_computed_again(workshop):
    augmented = array_task(2) | {"augment": [{"name": "noise", "std": 0.1}]}
    workshop.define(architecture=MLP, mechanism="retraining", task=augmented)
    carry_out(workshop)
    train, _ = workshop.split()
    found = recompute(workshop.services, "model")
    assert (found.version, found.records, found.is_equal) == (1, len(train), True)
    workshop.forget(train[0])
    with pytest.raises(ConflictError, match="to be forgotten"):
        recompute(workshop.services, "model")
    workshop.dispatch()
    carry_out(workshop)
    again = recompute(workshop.services, "model")
    assert (again.version, again.records, again.is_equal) == (2, len(train) - 1, True)
    predicate = predicate_of(workshop)
    (known,) = known_of(workshop).values()
    assert predicate["recomputable"] is True
    assert predicate["software"]["arithmetic"] == known.in_words()
    assert known.seed not in json.dumps(predicate) + repr(known)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_network_on_public_weights_is_computed_again(workshop, frozen):
    define_backbone(workshop, hidden=(5,))
    architecture = replace(MLP, backbone=BackboneUse("public", frozen=frozen))
    workshop.define(architecture=architecture, mechanism="retraining")
    carry_out(workshop)
    assert recompute(workshop.services, "model").is_equal


@pytest.mark.parametrize("architecture", [LINEAR, GROWN])
def test_members_have_seeds_of_their_own_and_are_computed_again(workshop, architecture):
    train = ensemble(workshop, architecture=architecture)
    before = known_of(workshop)
    assert len({each.seed for each in before.values()}) == MEMBERS
    forget(workshop, train[0])
    after = known_of(workshop)
    assert sum(after[each] != before[each] for each in range(MEMBERS)) == 1
    assert recompute(workshop.services, "model").is_equal
    found = [recompute(workshop.services, "model", member=each) for each in range(MEMBERS)]
    assert all(each.is_equal for each in found)
    assert sum(each.records for each in found) == len(train) - 1
    grown = architecture is GROWN
    assert ("scikit-learn" in predicate_of(workshop)["software"]["arithmetic"]) == grown


def test_the_seed_of_a_member_that_is_out_is_gone(workshop):
    train = ensemble(workshop, forget="leave_out")
    old, before = head_of(workshop), known_of(workshop)
    forget(workshop, train[0])
    after = known_of(workshop)
    (out,) = before.keys() - after.keys()
    assert all(after[each] == before[each] for each in after)
    assert recompute(workshop.services, "model").is_equal
    assert predicate_of(workshop)["recomputable"] is True
    with pytest.raises(ConflictError, match="no active member"):
        recompute(workshop.services, "model", member=out)
    services = workshop.services
    services.blobs.sweep()
    with pytest.raises(GoneError):
        provenance_of(services.database, services.blobs, old.id)


def test_what_is_kept_decrypts_nowhere_else(workshop):
    ensemble(workshop)
    head, blobs = head_of(workshop), workshop.services.blobs
    with pytest.raises(CorruptObjectError):
        blobs.decrypt_beside(head.blob_id, "weights", head.provenance)
    for damaged in (head.provenance[:-1], head.provenance[:20]):
        with pytest.raises(CorruptObjectError):
            blobs.decrypt_beside(head.blob_id, "provenance", damaged)


def keep_a_record(_, monkeypatch, gone):
    """Let the next run train the member concerned on a record that was forgotten."""

    def kept(*arguments, **named):
        chosen = begin(*arguments, **named)
        members = {each: np.sort(np.append(own, gone)) for each, own in chosen.members.items()}
        return replace(chosen, members=members)

    monkeypatch.setattr(run_records.selections, "begin", kept)


def start_from_old_weights(workshop, monkeypatch, gone):
    """Let the member concerned start from what the version before has of it."""
    tensors = safetensors.numpy.load(released(workshop))
    with workshop.transaction() as session:
        record = session.get_one(RecordRow, gone)
        member = workshop.membership().member_of(record)
    old = {own: tensors[name] for own, name in by_member(tensors)[member].items()}
    real = Network.train

    def train(network, *arguments, **named):
        network.load(old)
        return real(network, *arguments, **named)

    monkeypatch.setattr(Network, "train", train)


def reorder(_, monkeypatch, __):
    real = MemberRecords.of

    def backwards(*arguments):
        found = real(*arguments)
        return found.select(np.arange(len(found))[::-1].copy())

    monkeypatch.setattr(MemberRecords, "of", backwards)


def of_the_largest_member(workshop, train):
    """Return a record whose member keeps others: two of them sum to the same in any order."""
    membership, records = workshop.membership(), dict[int, list[str]]()
    with workshop.transaction() as session:
        for record in train:
            row = workshop.record(session, record)
            records.setdefault(membership.member_of(row), []).append(record)
    return max(records.values(), key=len)[0]


@pytest.mark.parametrize("sabotage", [keep_a_record, start_from_old_weights, reorder])
def test_a_run_that_was_not_as_stated_is_found(workshop, monkeypatch, sabotage):
    record = of_the_largest_member(workshop, ensemble(workshop))
    with workshop.transaction() as session:
        gone = workshop.record(session, record).seq
    with monkeypatch.context() as patched:
        sabotage(workshop, patched, gone)
        forget(workshop, record)
    found = recompute(workshop.services, "model")
    assert not found.is_equal
    assert found.differs.startswith("members.")
    assert found.unlike == {}
    wrong = [
        m for m in range(MEMBERS) if not recompute(workshop.services, "model", member=m).is_equal
    ]
    assert len(wrong) == 1


def test_trees_of_another_library_are_named(workshop, monkeypatch):
    ensemble(workshop, architecture=GROWN)
    real = boosting._put

    def put(trees, *arguments, **named):
        real(trees, *arguments, **named)
        trees.baseline += 2.0**-40

    monkeypatch.setitem(training._OF_TREES, "scikit-learn", "2.0")
    monkeypatch.setattr(boosting, "_put", put)
    found = recompute(workshop.services, "model")
    assert not found.is_equal
    assert found.unlike.keys() == {"scikit-learn"}
    assert found.unlike["scikit-learn"].startswith("2.0, and ")


def test_other_circumstances_are_named(workshop, monkeypatch):
    workshop.define(architecture=MLP, mechanism="retraining")
    with monkeypatch.context() as patched:
        patched.setattr("workers.training.seed.platform.python_version", lambda: "2.7")
        patched.setattr(Seed, "start", lambda _: torch.default_generator.seed())
        carry_out(workshop)
    found = recompute(workshop.services, "model")
    assert not found.is_equal
    assert list(found.unlike) == ["python"]
    assert found.unlike["python"].endswith("and 2.7 then")


@pytest.mark.parametrize("mechanism", mostly_nightly(MECHANISMS, "gradient_clipping", *SEEDED))
def test_only_mechanisms_without_noise_keep_a_seed(
    api: TestClient, services, work: Callable[[], None], mechanism
):
    push_shops(Workshop(services))
    pair = next(each for each in pairs() if each.mechanism == mechanism and each.refusal is None)
    assert api.post("/v1/models", json=pair.definition()).status_code == 201
    work()
    with services.database.transaction() as session:
        model = registry.model_named(session, pair.name)
        versions = session.scalars(select(VersionRow).where(VersionRow.model_id == model.id))
        kept = {each.provenance is not None for each in versions}
    assert kept == {mechanism in SEEDED}


@pytest.mark.slow  # it starts a program that imports PyTorch
@pytest.mark.parametrize("architecture", [LINEAR, GROWN])
def test_another_process_computes_the_same(workshop, architecture):
    train = ensemble(workshop, architecture=architecture)
    forget(workshop, train[0])
    answer = runner.invoke(app, ["model", "recompute", "model", "--json"])
    assert answer.exit_code == 0, answer.stderr
    assert json.loads(answer.stdout)["equal"]
    answer = runner.invoke(app, ["model", "recompute", "model", "--member", "1"])
    assert (answer.exit_code, answer.stdout.splitlines()[-1]) == (0, "equal"), answer.stderr


def shuffled_copy(path):
    """Write the auditor's own copy of all records, forgotten ones included, in another order."""
    table = pq.read_table(io.BytesIO(records_parquet()))
    order = np.random.default_rng(3).permutation(table.num_rows)
    pq.write_table(table.take(pa.array(order)), path)
    return path


@pytest.mark.parametrize("public", [False, True])
def test_an_auditor_computes_it_without_a_service(workshop, tmp_path, public):
    define_backbone(workshop, hidden=(5,))
    spec = replace(ENSEMBLE, backbone=BackboneUse("public", frozen=False) if public else None)
    workshop.define(architecture=spec, mechanism="sharded_retraining", forget="leave_out")
    carry_out(workshop)
    train, _ = workshop.split()
    forget(workshop, train[0])
    kit = tmp_path / "kit"
    write_kit(workshop.services, "model", kit)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (kit, *kit.iterdir()))
    found = recompute_from(kit, shuffled_copy(tmp_path / "records.parquet"))
    assert found.is_equal
    assert found.released == head_of(workshop).sha256

    content = json.loads((kit / "kit.json").read_text())
    listed = [key for each in content["members"].values() for key in each["records"]]
    assert found.records == len(listed) == len(set(listed))
    for each in content["members"].values():
        each["records"].reverse()
    (kit / "kit.json").write_text(json.dumps(content))
    other = recompute_from(kit, tmp_path / "records.parquet")
    assert not other.is_equal
    assert other.differs.startswith("members.")
    pq.write_table(
        pq.read_table(tmp_path / "records.parquet").slice(0, 5), tmp_path / "few.parquet"
    )
    with pytest.raises(ConflictError, match=r"are not in few\.parquet"):
        recompute_from(kit, tmp_path / "few.parquet")
    largest = max(content["members"].values(), key=lambda each: len(each["records"]))
    largest["records"].append(largest["records"][0])
    (kit / "kit.json").write_text(json.dumps(content))
    with pytest.raises(ConflictError, match=r"1 of \d+ records are not in records\.parquet"):
        recompute_from(kit, tmp_path / "records.parquet")


def test_a_kit_cannot_start_from_weights_that_are_not_the_public_ones(workshop, tmp_path):
    """Not even from the version's own: a training of no step would give them again."""
    define_backbone(workshop, hidden=(5,))
    spec = replace(MLP, backbone=BackboneUse("public", frozen=False))
    workshop.define(architecture=spec, mechanism="retraining")
    carry_out(workshop)
    kit = tmp_path / "kit"
    write_kit(workshop.services, "model", kit)
    (kit / "backbone.safetensors").write_bytes(released(workshop))
    with pytest.raises(ConflictError, match="is not backbone 'public'"):
        recompute_from(kit, shuffled_copy(tmp_path / "records.parquet"))
    with pytest.raises(InvalidInputError, match="is no kit"):
        recompute_from(tmp_path, tmp_path / "records.parquet")


def test_a_kit_is_of_what_follows_from_a_seed(workshop, tmp_path):
    workshop.define(architecture="ridge_head", recipe={"held_out_fraction": 0}, mechanism="auto")
    carry_out(workshop)
    kit = tmp_path / "kit"
    with pytest.raises(ConflictError, match="model recompute"):
        write_kit(workshop.services, "model", kit)
    workshop.define("noisy")
    carry_out(workshop, "noisy")
    with pytest.raises(ConflictError, match="no seed that was kept"):
        write_kit(workshop.services, "noisy", kit)
    assert not kit.exists()


@pytest.mark.slow  # it starts two programs that import PyTorch
def test_the_commands_write_and_use_a_kit(workshop, tmp_path):
    train = ensemble(workshop)
    forget(workshop, train[0])
    kit = tmp_path / "kit"
    answer = runner.invoke(app, ["recompute-kit", "model", "--out", str(kit)])
    assert answer.exit_code == 0, answer.stderr
    records = shuffled_copy(tmp_path / "records.parquet")
    command = [sys.executable, "-m", "expunge.recompute", str(kit), str(records)]
    alone = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=alone)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"]

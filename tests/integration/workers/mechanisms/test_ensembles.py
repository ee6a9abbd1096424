"""Ensembles: trained member by member, and only the members concerned are trained again."""

import io
import json
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

from app.domain.architectures import ArchitectureSpec, Member, by_member
from app.domain.errors import InvalidInputError, LeaseLostError, PlanError
from app.domain.states import BlobState, MemberState
from app.evidence.certificates.weights_file import WeightsFile
from app.ledger import member_trainings
from app.ledger.leaving_out import provenance_of
from app.ledger.member_trainings import KIND
from app.ledger.tables import MemberTrainingRow
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.repository import KeyedRecord
from app.registry.membership import membership_of
from app.registry.tables import VersionRow
from app.runtime.database import leases
from app.storage.tables import BlobRow
from demo.tables import record_table
from tests.support.arrays import array_task
from tests.support.collector import Collector, assert_connected, sending
from tests.support.exact_heads import carry_out, head_of, released
from tests.support.operators import PACKAGE, operators_package
from tests.support.patience import PATIENCE_S, until
from tests.support.workshop import DATASET, RECORDS, Workshop, record_ids
from workers import jobs
from workers.data.loading import load_model
from workers.mechanisms.ensembles import run as ensembles
from workers.training.examples import Examples
from workers.training.networks.network import Network
from workers.training.seed import Seed

MEMBERS = 4
_HELPER = "import sys; from workers import jobs; jobs.train_members(sys.argv[1])"
MLP = ArchitectureSpec("mlp", {"hidden": [3]})
ENSEMBLE = ArchitectureSpec("ensemble", members=MEMBERS, of=MLP)
GROWN = ArchitectureSpec("ensemble", members=MEMBERS, of=ArchitectureSpec("boosted_trees"))
HUBER = array_task(2) | {"name": "regression", "target": {"columns": ["label"]}, "loss": "huber"}


@pytest.fixture
def trained(workshop):
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    carry_out(workshop)
    return workshop


def members(workshop):
    with workshop.transaction() as session:
        version = session.get_one(VersionRow, head_of(workshop).id)
        return [Member.from_json(each) for each in version.members]


def member_of(workshop, record_id):
    with workshop.transaction() as session:
        row = workshop.record(session, record_id)
        membership = membership_of(workshop.model())
        return membership.member_of(row)


def tensors_of(workshop):
    content = safetensors.numpy.load(released(workshop))
    return {
        member: {own: content[name] for own, name in names.items()}
        for member, names in by_member(content).items()
    }


def forget(workshop, *records, **more):
    request = workshop.forget(*records, **more)
    workshop.dispatch()
    return request


def test_only_the_members_concerned_are_trained_anew(trained):
    before, old = members(trained), tensors_of(trained)
    assert [each.trained_in for each in before] == [1] * MEMBERS
    train, _ = trained.split()
    forget(trained, train[0])
    carry_out(trained)
    after, new = members(trained), tensors_of(trained)
    concerned = member_of(trained, train[0])
    assert [m for m in range(MEMBERS) if after[m] != before[m]] == [concerned]
    assert after[concerned].trained_in == 2
    for member in range(MEMBERS):
        same = all(np.array_equal(new[member][name], old[member][name]) for name in new[member])
        assert same == (member != concerned)
    with io.BytesIO(released(trained)) as file:
        assert WeightsFile(file).digests_of_members() == dict(enumerate(m.sha256 for m in after))


def test_members_start_apart_whatever_their_factory_shares(services, monkeypatch):
    """The factory keeps a layer of zeros, which one member after the other would train."""
    shared = nn.Linear(8, 8)
    nn.init.zeros_(shared.weight)
    nn.init.zeros_(shared.bias)

    def build(*, input_shape, classes):
        layers = nn.Linear(input_shape[0], 8), shared, nn.Linear(8, classes)
        return nn.Sequential(nn.Flatten(), *layers)

    operators_package(monkeypatch, build)
    monkeypatch.setenv("EXPUNGE_ALLOWED_FACTORIES", json.dumps([f"{PACKAGE}:*"]))
    starts, real = [], ensembles.train_member

    def watched(model, plan, examples, fresh, on_progress):
        starts.append(float(fresh()[2].bias.abs().sum()))
        return real(model, plan, examples, fresh, on_progress)

    monkeypatch.setattr(ensembles, "train_member", watched)
    workshop = Workshop(services)
    custom = ArchitectureSpec("custom", factory=f"{PACKAGE}:build")
    spec = ArchitectureSpec("ensemble", members=MEMBERS, of=custom)
    recipe = {"epochs": 2, "learning_rate": 1e-3}
    workshop.define(
        architecture=spec, mechanism="sharded_retraining", forget="retrain", recipe=recipe
    )
    jobs.execute_run(workshop.active_run())
    assert starts == [0.0] * MEMBERS
    assert any(np.any(own["2.bias"]) for own in tensors_of(workshop).values())


def test_a_person_has_one_member_and_members_are_uniform(trained):
    train, held_out = trained.split()
    by_subject = {}
    for record in train + held_out:
        subject = int(record.removeprefix("record-")) // 4
        by_subject.setdefault(subject, set()).add(member_of(trained, record))
    assert all(len(found) == 1 for found in by_subject.values())
    membership = membership_of(trained.model())
    records = [KeyedRecord(i, i.to_bytes(32), None, None) for i in range(4000)]
    drawn = Counter(map(membership.member_of, records))
    assert sorted(drawn) == list(range(MEMBERS))
    assert all(abs(count - 1000) < 150 for count in drawn.values())  # 5 standard deviations


def test_members_keep_to_their_own_records(trained, monkeypatch):
    seen = {}
    real = ensembles.train_member

    def watched(model, plan, examples, fresh, on_progress):
        seen[len(seen)] = len(examples)
        return real(model, plan, examples, fresh, on_progress)

    monkeypatch.setattr(ensembles, "train_member", watched)
    train, _ = trained.split()
    forget(trained, train[0])
    carry_out(trained)
    own = [r for r in train[1:] if member_of(trained, r) == member_of(trained, train[0])]
    assert seen == {0: len(own)}


def test_a_concerned_member_is_one_that_never_had_the_records(trained):
    """Trained from the same seed on its retained records alone, it has the same weights."""
    train, _ = trained.split()
    forget(trained, *train[:3])
    carry_out(trained)
    new = tensors_of(trained)
    concerned = {member_of(trained, record) for record in train[:3]}
    services = trained.services
    model = load_model(services, trained.model().id)
    known = provenance_of(services.database, services.blobs, head_of(trained).id)
    assert len({each.seed for each in known.values()}) == MEMBERS
    for member in concerned:
        numbers = [
            int(record.removeprefix("record-"))
            for record in train[3:]
            if member_of(trained, record) == member
        ]
        examples = Examples.of(
            model.form,
            {
                "inputs": np.array([[i, -i] for i in sorted(numbers)], dtype=np.float32),
                "target": np.array([i % 2 for i in sorted(numbers)]),
            },
        )
        alone = Network(
            model.factory(services.settings),
            device=torch.device("cpu"),
            seed=Seed(known[member].seed),
        )
        alone.train(examples, model.recipe, epochs=model.recipe.epochs)
        for name, tensor in alone.tensors().items():
            assert np.array_equal(new[member][name], tensor)


def test_a_member_without_records_is_left_untrained(trained):
    train, _ = trained.split()
    gone = member_of(trained, train[0])
    everyone = [record for record in train if member_of(trained, record) == gone]
    forget(trained, *everyone)
    carry_out(trained)
    assert members(trained)[gone].trained_in == 2


def test_all_members_are_trained_with_a_new_training(trained):
    trained.retrain()
    carry_out(trained)
    assert [each.trained_in for each in members(trained)] == [2] * MEMBERS


@pytest.mark.slow  # it starts programs that import PyTorch
def test_other_workers_train_members_too(workshop, monkeypatch):
    """The run's own worker waits for what another one, in a process of its own, has begun."""
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    run_id, own = workshop.active_run(), []
    program = [sys.executable, "-c", _HELPER, run_id]
    real = ensembles.train_member

    def states():
        with workshop.transaction() as session:
            return [row.state for row in member_trainings.all_of(session, run_id)]

    def after_help(*arguments):
        if not own:
            helper = subprocess.Popen(program)
            until(lambda: MemberState.DONE in states())
            assert helper.wait(PATIENCE_S) == 0
        own.append(1)
        arguments[-1](1, 1000)
        return real(*arguments)

    told = []
    monkeypatch.setattr(ensembles, "train_member", after_help)
    monkeypatch.setattr(ensembles, "step_reporter", lambda _: lambda *step: told.append(step))
    monkeypatch.setattr(ensembles, "ram_only", nullcontext)  # the test itself starts a process
    with Collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        with sending():
            carry_out(workshop)
            (run,) = collector.named("run")
            helped = collector.named("member", MEMBERS - 1)
    assert_connected(collector.spans())
    assert len(helped) == MEMBERS - 1
    assert {span.parent for span in helped} == {run.span}
    assert run.attributes["process.pid"] not in {span.attributes["process.pid"] for span in helped}
    assert len(own) == 1
    assert told[0] == (1000 * (MEMBERS - 1) + 1, 1000 * MEMBERS)
    assert all(step <= steps for step, steps in told)
    assert [each.trained_in for each in members(workshop)] == [1] * MEMBERS
    assert states() == []
    with workshop.transaction() as session:
        handed = session.query(BlobRow).filter_by(kind=KIND).all()
        assert len(handed) == MEMBERS - 1
        assert {row.state for row in handed} <= {BlobState.DOOMED, BlobState.SHREDDED}


def test_a_helper_that_dies_or_comes_twice_is_no_harm(workshop):
    """What it holds is taken over when its lease ends, and what it hands over late is refused."""
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    held = workshop.begun()
    with workshop.transaction() as session:
        member_trainings.begin(session, held.run_id, held.token, range(MEMBERS))
    with workshop.transaction() as session:
        dead = member_trainings.take(session, held.run_id, lease_s=-1.0)
        first = member_trainings.HeldMember.of(dead)
    with workshop.transaction() as session:
        again = member_trainings.take(session, held.run_id, lease_s=30.0)
        assert again.member == first.member
        assert again.fencing_token == first.fencing_token + 1
    with pytest.raises(Exception, match="another worker"), workshop.transaction() as session:
        member_trainings.finish(session, first, "blob")
    with workshop.transaction() as session:
        rows = member_trainings.all_of(session, held.run_id)
        assert [row.state for row in rows].count(MemberState.WAITING) == MEMBERS - 1


def test_a_helper_of_an_earlier_attempt_holds_nothing_of_a_later_one(workshop):
    """Both attempts count their members' leases from one."""
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    tokens, leases = [], []
    for _ in range(2):
        held = workshop.begun()
        with workshop.transaction() as session:
            member_trainings.begin(session, held.run_id, held.token, range(MEMBERS))
        with workshop.transaction() as session:
            row = member_trainings.take(session, held.run_id, lease_s=30.0)
            leases.append(member_trainings.HeldMember.of(row))
        tokens.append(held.token)
        if len(tokens) == 1:
            workshop.give_up(held, permanent=False)
    old, new = leases
    assert (old.member, old.fencing_token) == (new.member, new.fencing_token)
    with pytest.raises(LeaseLostError), workshop.transaction() as session:
        member_trainings.heartbeat(session, old, lease_s=30.0)
    with workshop.transaction() as session:
        member_trainings.give_back(session, old)
        assert member_trainings.waiting(session, new.run_id) == MEMBERS - 1
        member_trainings.heartbeat(session, new, lease_s=30.0)


def test_a_helper_from_before_an_attempt_began_again_hands_nothing_over(workshop):
    """Its member may have read a record that was forgotten until the attempt chose its records."""
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    held = workshop.begun()

    def begun_and_taken(lease_s):
        with workshop.transaction() as session:
            member_trainings.begin(session, held.run_id, held.token, range(MEMBERS))
        with workshop.transaction() as session:
            return member_trainings.HeldMember.of(
                member_trainings.take(session, held.run_id, lease_s=lease_s)
            )

    stale, own = begun_and_taken(30.0), begun_and_taken(None)
    assert stale.member == own.member
    with workshop.transaction() as session:
        member_trainings.finish(session, own, None)
    for late in (
        lambda session: member_trainings.finish(session, stale, "blob"),
        lambda session: member_trainings.heartbeat(session, stale, lease_s=30.0),
    ):
        with pytest.raises(LeaseLostError), workshop.transaction() as session:
            late(session)
    with workshop.transaction() as session:
        rows = member_trainings.all_of(session, held.run_id)
        assert {row.blob_id for row in rows} == {None}


def test_a_dead_helpers_lease_ends_though_the_clock_was_set_back(workshop):
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    held = workshop.begun()

    def take(lease_s):
        with workshop.transaction() as session:
            row = member_trainings.take(session, held.run_id, lease_s=lease_s)
            return None if row is None else row.member

    with workshop.transaction() as session:
        member_trainings.begin(session, held.run_id, held.token, [0])
    assert take(3600.0) == 0
    assert take(None) is None
    with workshop.transaction() as session:
        leases.shorten(session, MemberTrainingRow, lease_s=0.0)
    assert take(None) == 0


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"mechanism": "gradient_clipping"}, "leaves out the members concerned"),
        ({"mechanism": "retraining"}, "leaves out the members concerned"),
        ({"adaptive": True}, "adaptive"),
        ({"first_release": "as_trained"}, "exact from their first release on"),
        ({"upload": True}, "takes no weights"),
        ({"recipe": {"patience": 2}}, "patience lets held-out"),
        ({"architecture": GROWN, "recipe": {"patience": 2}}, "patience lets held-out"),
        ({"architecture": GROWN, "recipe": {"epochs": 2}}, "takes no 'epochs'"),
        ({"architecture": GROWN, "recipe": {}, "mechanism": "boosting"}, "leaves out the members"),
        ({"architecture": GROWN, "recipe": {}, "task": HUBER}, "squared loss"),
    ],
)
def test_what_an_ensemble_cannot_be_is_refused_at_definition(workshop, more, why):
    chosen = {"mechanism": "sharded_retraining", "architecture": ENSEMBLE} | more
    with pytest.raises((InvalidInputError, PlanError), match=why):
        workshop.define(**chosen)


def test_a_member_that_comes_out_as_it_was_without_a_record_is_published(workshop):
    """Trees that all answer the same are the same without one of their records."""
    ids = [f"same-{number}" for number in range(2 * RECORDS)]
    features = np.random.default_rng(0).normal(size=(len(ids), 2)).astype(np.float32)
    table = record_table(record_ids=ids, labels=[1] * len(ids), features=features)
    workshop.services.records.push(DATASET, to_parquet(table))
    workshop.forget(*record_ids())
    workshop.define(
        architecture=GROWN,
        recipe={},
        task=HUBER | {"loss": "squared"},
        mechanism="sharded_retraining",
        forget="retrain",
    )
    carry_out(workshop)
    before = members(workshop)
    request = forget(workshop, ids[0])
    carry_out(workshop)
    assert workshop.request(request).state == "certified"
    after = members(workshop)
    assert [each.sha256 for each in after] == [each.sha256 for each in before]
    assert sorted(each.trained_in for each in after) == [1, 1, 1, 2]


def test_other_networks_have_no_members(workshop):
    with pytest.raises(PlanError, match="needs an ensemble"):
        workshop.define(architecture=MLP, mechanism="sharded_retraining", forget="retrain")


def test_the_default_policy_takes_part(workshop):
    workshop.define(architecture=ENSEMBLE, mechanism="auto")
    carry_out(workshop)
    assert len(members(workshop)) == MEMBERS

"""Help with an ensemble's run: what another worker hands over is what its own would have made."""

import threading
import time

import pytest
from sqlalchemy import delete, select, text, update
from torch import nn

from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.errors import LeaseLostError, RunFailedError
from app.ledger import member_trainings
from app.ledger.tables import OutboxRow, RunRow
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.runtime.processes.stopping import StopSignal
from app.storage.tables import BlobRow
from tests.support.collector import Collector, sending
from tests.support.exact_heads import carry_out, define_backbone
from tests.support.workshop import Workshop, record_ids
from workers.data.loading import load_model, readers_for
from workers.mechanisms.ensembles import helping
from workers.mechanisms.ensembles.helping import MemberLease

ENSEMBLE = ArchitectureSpec("ensemble", members=2, of=ArchitectureSpec("logistic"))


def drawn_anew():
    """Return a network on a frozen layer that each has for itself."""
    return nn.Sequential(nn.Linear(2, 3).requires_grad_(requires_grad=False), nn.Linear(3, 2))


def begun(services):
    """Return a workshop, the run that it has begun, and the members that wait for training."""
    workshop = Workshop(services)
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    held = workshop.lease()
    members = workshop.begin(held).members
    with workshop.transaction() as session:
        member_trainings.begin(session, held.run_id, held.token, list(members))
    return workshop, held, members


def test_a_member_is_trained_on_the_base_that_it_is_handed_over_with(services, monkeypatch):
    _, held, _ = begun(services)
    monkeypatch.setattr(helping, "starting", lambda *_: drawn_anew)
    lease = MemberLease.take(services.database, held.run_id, lease_s=30.0, stop=StopSignal())
    with lease, pytest.raises(RunFailedError, match="have changed since the run began"):
        helping._train(services, lease)


@pytest.mark.parametrize("when", ["member_trained", "member_written"])
def test_nothing_is_left_of_a_member_of_an_earlier_choice(services, monkeypatch, when):
    """The run chooses its records again, as after an outage, while another worker helps."""
    workshop, held, members = begun(services)
    lease = MemberLease.take(services.database, held.run_id, lease_s=30.0, stop=StopSignal())
    record = next(i for i in record_ids() if workshop.seqs(i) <= members[lease.held.member])
    requests = []

    def begin_again(point):
        if point == when:
            requests.append(workshop.forget(record))
            workshop.begin(held)

    monkeypatch.setattr(helping, "reach", begin_again)
    with lease, pytest.raises(LeaseLostError):
        helping._train(services, lease)
    services.clean_up()

    assert workshop.request(*requests).state == "completed"
    with workshop.transaction() as session:
        handed_over = session.scalars(
            select(BlobRow.id).where(BlobRow.kind == member_trainings.KIND)
        ).all()
    assert [each for each in handed_over if services.blobs.is_readable(each)] == []


def test_a_helper_gives_way_to_a_run_and_help_is_asked_for_again(services, monkeypatch):
    workshop = Workshop(services)
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    held = workshop.lease()
    members = workshop.begin(held).members
    workshop.define("other")
    with workshop.transaction() as session:
        member_trainings.begin(session, held.run_id, held.token, list(members))
        session.execute(delete(OutboxRow))
        session.execute(update(RunRow).values(enqueued_at=text("now() - interval '1 minute'")))

    def train(_, lease):
        while True:
            lease.check()
            time.sleep(0.05)

    monkeypatch.setattr(helping, "_train", train)
    helping.help_with(services, held.run_id, StopSignal())
    with workshop.transaction() as session:
        assert member_trainings.waiting(session, held.run_id) == len(members)
        assert session.scalars(select(OutboxRow.topic)).all() == ["enqueue_members"]


def test_a_helper_sends_nothing_while_it_trains_its_next_member(services, monkeypatch):
    _, held, _ = begun(services)
    real, threads = helping._train, []

    def train(*given):
        threads.append({thread.name for thread in threading.enumerate()})
        real(*given)

    monkeypatch.setattr(helping, "_train", train)
    with Collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        with sending():
            helping.help_with(services, held.run_id, StopSignal())
            assert len(collector.named("member", 2)) == len(threads) == 2
    assert not [name for seen in threads for name in seen if "Otel" in name]


def test_help_is_asked_for_once_there_are_features_that_others_can_read(services, monkeypatch):
    """A helper writes nothing; one that came before a frozen backbone's features would go again."""
    workshop = Workshop(services)
    define_backbone(workshop)
    on_features = ArchitectureSpec(
        "ensemble", members=2, of=ArchitectureSpec("logistic"), backbone=BackboneUse("public")
    )
    workshop.define(architecture=on_features, mechanism="sharded_retraining", forget="retrain")
    begin, read = member_trainings.begin, []

    def watched(session, *arguments):
        model = load_model(services, registry.model_named(session, "model").id)
        others = readers_for(services, model).again
        read.extend(others(shard.id, None) for shard in datasets.shards(session, model.dataset_id))
        begin(session, *arguments)

    monkeypatch.setattr(member_trainings, "begin", watched)
    carry_out(workshop)
    assert read

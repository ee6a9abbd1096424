"""Help with an ensemble's run: what another worker hands over is what its own would have made."""

import pytest
from torch import nn

from app.datasets import repository as datasets
from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.architectures.backbone import BackboneUse
from app.domain.errors import RunFailedError
from app.ledger.ensembles import trainings
from app.processes.stopping import StopSignal
from app.registry import repository as registry
from tests.support.exact_heads import carry_out, define_backbone
from tests.support.workshop import Workshop
from workers.data.loading import load_model, readers_for
from workers.ensembles import helping
from workers.ensembles.lease import MemberLease

ENSEMBLE = ArchitectureSpec("ensemble", members=2, of=ArchitectureSpec("logistic"))


def drawn_anew():
    """Return a network on a frozen layer that each has for itself."""
    return nn.Sequential(nn.Linear(2, 3).requires_grad_(requires_grad=False), nn.Linear(3, 2))


def test_a_member_is_trained_on_the_base_that_it_is_handed_over_with(services, monkeypatch):
    workshop = Workshop(services)
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining")
    held = workshop.lease()
    workshop.begin(held)
    with workshop.transaction() as session:
        trainings.begin(session, held.run_id, held.token, range(2))
    monkeypatch.setattr(helping, "starting", lambda *_: drawn_anew)
    lease = MemberLease.take(services.database, held.run_id, lease_s=30.0, stop=StopSignal())
    with lease, pytest.raises(RunFailedError, match="have changed since the run began"):
        helping._train(services, lease)


def test_help_is_asked_for_once_there_are_features_that_others_can_read(services, monkeypatch):
    """A helper writes nothing; one that came before a frozen backbone's features would go again."""
    workshop = Workshop(services)
    define_backbone(workshop)
    on_features = ArchitectureSpec(
        "ensemble", members=2, of=ArchitectureSpec("logistic"), backbone=BackboneUse("public")
    )
    workshop.define(architecture=on_features, mechanism="sharded_retraining")
    begin, read = trainings.begin, []

    def watched(session, *arguments):
        model = load_model(services, registry.model_named(session, "model").id)
        others = readers_for(services, model).again
        read.extend(others(shard.id) for shard in datasets.shards(session, model.dataset_id))
        begin(session, *arguments)

    monkeypatch.setattr(trainings, "begin", watched)
    carry_out(workshop)
    assert read

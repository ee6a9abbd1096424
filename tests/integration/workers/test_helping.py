"""Help with an ensemble's run: what another worker hands over is what its own would have made."""

import pytest
from torch import nn

from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.errors import RunFailedError
from app.ledger.ensembles import trainings
from app.processes.stopping import StopSignal
from tests.support.workshop import Workshop
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

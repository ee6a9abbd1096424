"""What a run has in memory: forgotten records only for an audit, and never among the others."""

import pytest

from app.stopping import StopSignal
from tests.support.weights import NETWORK_DIMENSION
from tests.support.workshop import Workshop
from workers.lease import Lease
from workers.loading import load_model, load_records


@pytest.fixture
def workshop(services):
    return Workshop(services)


def numbers(examples):
    """The first feature of every record is its number."""
    return sorted(examples.features[:, 0].int().tolist())


def loaded(workshop):
    services = workshop.services
    run_id = workshop.active_run()
    with Lease.take(services.database, run_id, lease_s=30.0, stop=StopSignal()) as lease:
        model = load_model(services, lease)
        return load_records(services, lease, model, dimension=NETWORK_DIMENSION)


@pytest.mark.parametrize("audit", [False, True])
def test_forgotten_records_are_loaded_for_an_audit_alone(workshop, audit):
    workshop.define(audit=audit)
    workshop.work()
    train, held_out = workshop.split()
    forgotten, kept = train[:2], train[2:]
    workshop.forget(*forgotten)
    workshop.dispatch()

    data = loaded(workshop)

    numbered = {name: int(name.removeprefix("record-")) for name in train + held_out}
    assert numbers(data.forgotten) == ([numbered[name] for name in forgotten] if audit else [])
    assert numbers(data.retain) == [numbered[name] for name in kept]
    assert numbers(data.held_out) == [numbered[name] for name in held_out]
    assert data.auditable is audit

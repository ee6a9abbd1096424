"""What a run has in memory: no forgotten record."""

import pytest

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import RunFailedError
from app.runtime.processes.stopping import StopSignal
from tests.support.exact_heads import carry_out
from tests.support.weights import NETWORK_DIMENSION, WEIGHTS
from workers.data.loading import load_model, load_start
from workers.data.run_records import load_records
from workers.leases.lease import Lease
from workers.training.tasks import catalogue


class Stored(list):
    """A blob's content in parts."""

    @property
    def size(self):
        return sum(map(len, self))

    def close(self):
        pass


def numbers(examples):
    """The first feature of every record is its number."""
    return sorted(examples.inputs[:, 0].int().tolist())


def loaded(workshop):
    services = workshop.services
    run_id = workshop.active_run()
    with Lease.take(services.database, run_id, lease_s=30.0, stop=StopSignal()) as lease:
        model = load_model(services, lease.model_id)
        return load_records(services, lease, model, dimension=NETWORK_DIMENSION)


def test_forgotten_records_are_not_loaded(workshop):
    workshop.train()
    train, held_out = workshop.split()
    forgotten, kept = train[:2], train[2:]
    workshop.forget(*forgotten)
    workshop.dispatch()

    data = loaded(workshop)

    numbered = {name: int(name.removeprefix("record-")) for name in train + held_out}
    assert numbers(data.retain) == [numbered[name] for name in kept]
    assert numbers(data.held_out) == [numbered[name] for name in held_out]
    read = [each for each in vars(data).values() if hasattr(each, "inputs")]
    assert sum(map(len, read)) == len(kept) + len(held_out)


def test_of_an_ensemble_nothing_is_decoded_but_what_is_measured_and_the_members_concerned(
    workshop, monkeypatch
):
    ensemble = ArchitectureSpec("ensemble", members=4, of=ArchitectureSpec("logistic"))
    workshop.define(architecture=ensemble, mechanism="sharded_retraining", forget="retrain")
    carry_out(workshop)
    workshop.push(20, first=100)  # that no version has learned from
    train, held_out = workshop.split()
    workshop.forget(train[0])
    workshop.dispatch()
    encode, decoded = catalogue.encode, []

    def noting(rows, spec):
        decoded.append(rows.num_rows)
        return encode(rows, spec)

    monkeypatch.setattr(catalogue, "encode", noting)
    data = loaded(workshop)

    assert len(data.members.seqs) == 1
    (learned,) = map(len, data.members.seqs.values())
    assert sum(decoded) == learned + len(held_out) < len(train)


def test_a_run_starts_from_the_certified_weights_alone(workshop, monkeypatch):
    """A blob that somebody put in their place is not what the lineage's history tells of."""
    workshop.train()
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    services = workshop.services
    monkeypatch.setattr(type(services.blobs), "open", lambda *_: Stored([WEIGHTS, b" "]))
    run_id = workshop.active_run()
    with (
        Lease.take(services.database, run_id, lease_s=30.0, stop=StopSignal()) as lease,
        pytest.raises(RunFailedError, match="not the version's"),
    ):
        load_start(services, lease)

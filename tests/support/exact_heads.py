"""Runs of exact heads, and what they leave."""

import safetensors.torch

from app.domain.architectures import ArchitectureSpec
from app.domain.states import BlobState
from app.registry import backbones
from app.registry import repository as registry
from app.registry.datasets import features
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import ShardRow
from app.registry.statistics_file import KIND
from app.runtime.processes.stopping import StopSignal
from app.storage.tables import BlobRow
from workers.leases.lease import Lease
from workers.run import execute
from workers.training.networks.architectures import build


def carry_out(workshop, name="model", *, run_id=None):
    """Carry out a model's run; by default its only one, or the oldest."""
    run_id = run_id or workshop.active_run(name)
    lease = Lease.take(workshop.services.database, run_id, lease_s=30.0, stop=StopSignal())
    with lease:
        execute(workshop.services, lease)


def head_of(workshop, name="model"):
    with workshop.transaction() as session:
        return registry.head_version(session, registry.model_named(session, name))


def released(workshop, name="model"):
    return workshop.services.blobs.read(head_of(workshop, name).blob_id)


def live_sums(workshop, dataset):
    """Count the objects with sums of a dataset's records that can be read."""
    with workshop.transaction() as session:
        dataset_id = datasets.dataset_named(session, dataset).id
        of_dataset = session.query(BlobRow).filter_by(kind=KIND, dataset_id=dataset_id)
        return sum(row.state != BlobState.SHREDDED for row in of_dataset)


def define_backbone(workshop, name="public", *, hidden=(300, 200), shape=(2,)):
    """Define a backbone with random weights."""
    spec = ArchitectureSpec("mlp", {"hidden": list(hidden)})
    public = build(spec, input_shape=shape, classes=2, allowed_factories=[]).state_dict()
    with workshop.transaction() as session:
        backbones.define_backbone(
            session, backbones.BackboneDefinition(name, spec, shape, classes=2, source="a test")
        )
        content = safetensors.torch.save(dict(public))
        backbones.upload_weights(session, workshop.services.blobs, name, content)


def give_up_features(workshop):
    """Lose every stored feature."""
    with workshop.transaction() as session:
        for shard in session.query(ShardRow).all():
            features.give_up(session, shard_id=shard.id)

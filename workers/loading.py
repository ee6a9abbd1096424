"""What a run reads: records, and the weights it starts from."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import safetensors.torch
import torch

from app.datasets import repository as datasets
from app.datasets.service import schema_of
from app.datasets.shards import decode_shard
from app.datasets.tables import DatasetRow
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import GoneError, RunFailedError
from app.domain.policy import Policy
from app.domain.recipe import TrainingRecipe
from app.domain.schema import FeatureSchema
from app.domain.states import RunKind
from app.ledger import runs
from app.registry import repository as registry
from app.registry.tables import ModelRow
from app.services import Services
from workers.lease import Lease
from workers.training.data import Examples

_ATTEMPTS = 5


@dataclass(frozen=True)
class ModelSpec:
    """What a run needs to know of its model."""

    name: str
    architecture: ArchitectureSpec
    recipe: TrainingRecipe
    policy: Policy
    schema: FeatureSchema
    dataset_id: str


@dataclass(frozen=True)
class RunData:
    """The records of one run, in memory.

    Attributes:
        retain: to learn from; no forgotten record is among them.
        held_out: to evaluate on; may be empty.
    """

    retain: Examples
    held_out: Examples


def load_model(services: Services, lease: Lease) -> ModelSpec:
    """Return the definition of the run's model."""
    with services.database.transaction() as session:
        model = session.get_one(ModelRow, lease.model_id)
        dataset = session.get_one(DatasetRow, model.dataset_id)
        return ModelSpec(
            name=model.name,
            architecture=ArchitectureSpec.from_json(model.architecture),
            recipe=TrainingRecipe.from_json(model.recipe),
            policy=Policy.from_json(model.policy),
            schema=schema_of(dataset),
            dataset_id=dataset.id,
        )


def load_records(services: Services, lease: Lease, model: ModelSpec) -> RunData:
    """Read the dataset, then fix which records the run may use and drop all others.

    The choice comes last: a record that is forgotten while shards are being read is left out.

    Raises:
        RunFailedError: no record is left to learn from.
        LeaseLostError: another worker holds the run.
    """
    seqs, labels, features = _read_shards(services, model)
    with services.database.transaction() as session:
        selection = runs.begin(session, lease.run_id, lease.fencing_token)

    def chosen(numbers: frozenset[int]) -> Examples:
        rows = np.isin(seqs, np.fromiter(numbers, dtype=np.int64, count=len(numbers)))
        return Examples.from_arrays(
            features[rows].reshape(-1, *model.schema.shape),
            labels[rows],
            offset=model.schema.offset,
            scale=model.schema.scale,
        )

    if not selection.retain:
        raise RunFailedError(
            "no record is left to learn from: push more records, or lower held_out_fraction"
        )
    return RunData(retain=chosen(selection.retain), held_out=chosen(selection.held_out))


def _read_shards(services: Services, model: ModelSpec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    for _ in range(_ATTEMPTS):
        with services.database.transaction() as session:
            blob_ids = [s.blob_id for s in datasets.shards(session, model.dataset_id) if s.rows]
        try:
            parts = [decode_shard(services.blobs.read(blob_id)) for blob_id in blob_ids]
        except GoneError:
            continue  # an erasure rewrote a shard meanwhile: read the new ones
        if not parts:
            raise RunFailedError("the dataset has no records: push some first")
        seqs, labels, features = (np.concatenate(column) for column in zip(*parts, strict=True))
        return seqs, labels, features
    raise GoneError("the dataset's shards kept changing while they were read")


def load_start(services: Services, lease: Lease) -> Mapping[str, torch.Tensor]:
    """Return the tensors that a ``certify`` or ``unlearn`` run starts from.

    Raises:
        RunFailedError: there are none.
    """
    with services.database.transaction() as session:
        model = session.get_one(ModelRow, lease.model_id)
        if lease.kind is RunKind.CERTIFY:
            blob_id = model.imported_blob_id
        else:
            head = registry.head_version(session, model)
            blob_id = None if head is None else head.blob_id
    if blob_id is None:
        raise RunFailedError("the model has no weights to start from: upload them again")
    return safetensors.torch.load(services.blobs.read(blob_id))

"""Loads a run's records and initial weights."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from app.datasets import repository as datasets
from app.datasets.service import schema_of
from app.datasets.shards import decode_shard
from app.datasets.tables import DatasetRow
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import GoneError, RunFailedError
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.recipe import TrainingRecipe
from app.domain.schema import FeatureSchema
from app.domain.states import FirstRelease, RunKind
from app.ledger import runs
from app.registry import repository as registry
from app.registry.tables import ModelRow
from app.services import Services
from workers.data.backbone import Backbone, FrozenBackbone, trainable
from workers.data.backbone_loading import load_backbone
from workers.data.features import read_features
from workers.lease import Lease
from workers.training.data import Examples

_ATTEMPTS = 5
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class ModelSpec:
    """What a run needs to know about its model.

    Attributes:
        schema: of the records, or of the features that a frozen backbone makes of them.
        backbone: the public weights that the model stands on, if it does.
        releases_as_trained: whether a training's result is published as it is: only as the first
            version.
    """

    name: str
    architecture: ArchitectureSpec
    recipe: TrainingRecipe
    policy: Policy
    schema: FeatureSchema
    dataset_id: str
    backbone: Backbone | None = None
    releases_as_trained: bool = False


@dataclass(frozen=True)
class RunData:
    """The records of one run, in memory.

    Attributes:
        retain: records to train on; none of them is forgotten.
        held_out: records for evaluation; may be empty.
        forgotten: records for the membership attack if the policy asks for it, else empty. They
            are never used for training.
        plan: the run's plan.
        batch_of: int64 [n], the fixed batch of each retained record; empty if batches are random.
    """

    retain: Examples
    held_out: Examples
    forgotten: Examples
    plan: Plan
    batch_of: NDArray[np.int64]

    @property
    def auditable(self) -> bool:
        """Whether there are records to measure a membership attack on."""
        return len(self.forgotten) > 0 and len(self.held_out) > 0


def load_model(services: Services, lease: Lease) -> ModelSpec:
    """Return the definition of the run's model."""
    with services.database.transaction() as session:
        model = session.get_one(ModelRow, lease.model_id)
        dataset = session.get_one(DatasetRow, model.dataset_id)
        policy = Policy.from_json(model.policy)
        spec = ModelSpec(
            name=model.name,
            architecture=ArchitectureSpec.from_json(model.architecture),
            recipe=TrainingRecipe.from_json(model.recipe),
            policy=policy,
            schema=schema_of(dataset),
            dataset_id=dataset.id,
            releases_as_trained=policy.first_release is FirstRelease.AS_TRAINED
            and registry.next_number(session, model.id) == 1,
        )
    backbone = load_backbone(services, spec.architecture)
    if isinstance(backbone, FrozenBackbone):
        spec = replace(spec, schema=backbone.schema(spec.schema))
    return replace(spec, backbone=backbone)


def load_records(services: Services, lease: Lease, model: ModelSpec, *, dimension: int) -> RunData:
    """Read the dataset, then fix which records the run may use and drop all others.

    The selection comes last, so that records forgotten while shards are read are left out. The plan
    depends on ``dimension``, the number of trained weights.

    Raises:
        RunFailedError: no record is left to train on.
        LeaseLostError: another worker holds the run.
    """
    with services.database.transaction() as session:
        known = {shard.id for shard in datasets.shards(session, model.dataset_id)}
    if isinstance(model.backbone, FrozenBackbone):
        shards = read_features(services, model.dataset_id, model.backbone, check=lease.check)
    else:
        shards = _read_shards(services, model)
    selection = runs.begin(
        services.database,
        services.blobs,
        lease.run_id,
        lease.fencing_token,
        dimension=dimension,
        shards=known,
    )
    if not selection.retain:
        raise RunFailedError(
            "no record is left to train on: push more records, or lower held_out_fraction"
        )
    retain = _Selected(selection.retain, model.schema)
    held_out = _Selected(selection.held_out, model.schema)
    forgotten = _Selected(selection.forgotten, model.schema)
    while shards:
        shard = shards.pop()  # free each shard before the next one is copied
        retain.take(*shard)
        held_out.take(*shard)
        forgotten.take(*shard)
    batch_of = selection.batch_of
    return RunData(
        retain=retain.examples(),
        held_out=held_out.examples(),
        forgotten=forgotten.examples(),
        plan=selection.plan,
        batch_of=np.array([batch_of[seq] for seq in retain.seqs() if batch_of], dtype=np.int64),
    )


class _Selected:
    """The selected records, copied shard by shard into arrays of the final size."""

    def __init__(self, seqs: frozenset[int], schema: FeatureSchema) -> None:
        self._seqs = np.fromiter(seqs, dtype=np.int64, count=len(seqs))
        self._schema = schema
        dtype = np.uint8 if schema.dtype == "uint8" else np.float32
        self._features = np.empty((len(seqs), schema.size), dtype=dtype)
        self._labels = np.empty(len(seqs), dtype=np.int64)
        self._taken = np.empty(len(seqs), dtype=np.int64)
        self._count = 0

    def take(self, seqs: np.ndarray, labels: np.ndarray, features: np.ndarray) -> None:
        """Copy a shard's selected records."""
        rows = np.flatnonzero(np.isin(seqs, self._seqs))
        end = self._count + len(rows)
        self._labels[self._count : end] = labels[rows]
        self._taken[self._count : end] = seqs[rows]
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[start : start + _ROWS_AT_ONCE]
            first = self._count + start
            self._features[first : first + len(some)] = features[some]
        self._count = end

    def seqs(self) -> list[int]:
        """Return the sequence numbers of the copied records, in their order."""
        taken: list[int] = self._taken[: self._count].tolist()
        return taken

    def examples(self) -> Examples:
        """Return the copied records."""
        return Examples.from_arrays(
            self._features[: self._count].reshape(-1, *self._schema.shape),
            self._labels[: self._count],
            offset=self._schema.offset,
            scale=self._schema.scale,
        )


def _read_shards(
    services: Services, model: ModelSpec
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return every shard's seqs, labels and features."""
    for _ in range(_ATTEMPTS):
        with services.database.transaction() as session:
            blob_ids = [s.blob_id for s in datasets.shards(session, model.dataset_id) if s.rows]
        try:
            parts = [decode_shard(services.blobs.read(blob_id)) for blob_id in blob_ids]
        except GoneError:
            continue  # an erasure rewrote a shard meanwhile: read the new ones
        return parts
    raise GoneError("the dataset's shards kept changing while they were read")


def load_start(services: Services, lease: Lease) -> Mapping[str, torch.Tensor]:
    """Return the tensors that a ``certify`` or ``unlearn`` run starts from.

    Raises:
        RunFailedError: there are none.
    """
    with services.database.transaction() as session:
        model = session.get_one(ModelRow, lease.model_id)
        architecture = ArchitectureSpec.from_json(model.architecture)
        head = None if lease.kind is RunKind.CERTIFY else registry.head_version(session, model)
        blob_id = model.imported_blob_id
        if lease.kind is not RunKind.CERTIFY:
            blob_id = None if head is None else head.blob_id
    if blob_id is None:
        raise RunFailedError("the model has no weights to start from: upload them again")
    content = services.blobs.read(blob_id)
    # The lineage's history accounts for exactly the certified version.
    if head is not None and hashlib.sha256(content).hexdigest() != head.sha256:
        raise RunFailedError("the initial weights are not the version's: run 'expunge log fsck'")
    return trainable(architecture, safetensors.torch.load(content))

"""Loads a run's records and initial weights."""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from app.datasets import repository as datasets
from app.datasets.tables import DatasetRow
from app.domain.architecture import ArchitectureSpec
from app.domain.description import ModelDescription
from app.domain.errors import CorruptObjectError, GoneError, RunFailedError
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.recipes.recipe import TrainingRecipe
from app.domain.schema import FeatureSchema
from app.domain.states import FirstRelease, RunKind
from app.ledger import runs
from app.ledger.runs import Selection
from app.planning.mechanisms.catalogue import mechanism_of
from app.planning.mechanisms.sufficient_statistics import SufficientStatistics
from app.registry import repository as registry
from app.registry.describing import describe
from app.registry.statistics_file import StatisticsFile
from app.registry.tables import ModelRow
from app.services import Services
from app.settings import Settings
from workers.data.backbone import Backbone, FrozenBackbone, trainable
from workers.data.backbone_loading import load_backbone
from workers.data.features import Part
from workers.data.shards import read_records, read_shards
from workers.exact.summing import Quantiser, Summed, sums_less, sums_over
from workers.lease import Lease
from workers.training.architectures import build
from workers.training.data import Examples

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class ModelSpec:
    """What a run needs to know about its model.

    Attributes:
        description: what the file of its next version says of it.
        schema: of the records, or of the features that a frozen backbone makes of them.
        releases_as_trained: whether a training's result is published as it is.
    """

    name: str
    architecture: ArchitectureSpec
    recipe: TrainingRecipe
    policy: Policy
    description: ModelDescription
    schema: FeatureSchema
    dataset_id: str
    backbone: Backbone | None = None
    releases_as_trained: bool = False

    def factory(self, settings: Settings, *, in_full: bool = False) -> Callable[[], nn.Module]:
        """Return what builds the network, without a frozen backbone.

        With ``in_full``, exceptions of the operator's code are shown in full: only for as long as
        no record was read.
        """
        return lambda: build(
            self.architecture,
            input_shape=self.schema.shape,
            classes=self.schema.classes,
            allowed_factories=settings.allowed_factories,
            tokens=self.schema.tokens,
            in_full=in_full,
        )


@dataclass(frozen=True)
class RunData:
    """The records of one run, in memory.

    Attributes:
        retain: records to train on; none of them is forgotten.
        forgotten: records for the membership attack if the policy asks for it, else empty. They
            are never used for training.
        batch_of: int64 [n], the fixed batch of each retained record; empty if batches are random.
        summed: the sums over the retained records, which are all that a ridge head needs of them;
            ``retain`` is empty then.
    """

    retain: Examples
    held_out: Examples
    forgotten: Examples
    plan: Plan
    batch_of: NDArray[np.int64]
    summed: Summed | None = None

    @property
    def auditable(self) -> bool:
        """Whether there are records to measure a membership attack on."""
        return len(self.forgotten) > 0 and len(self.held_out) > 0


def load_model(services: Services, model_id: str) -> ModelSpec:
    """Return a model's definition."""
    with services.database.transaction() as session:
        model = session.get_one(ModelRow, model_id)
        dataset = session.get_one(DatasetRow, model.dataset_id)
        policy = Policy.from_json(model.policy)
        description = describe(session, model, dataset)
        spec = ModelSpec(
            name=model.name,
            architecture=description.architecture,
            recipe=TrainingRecipe.from_json(model.recipe),
            policy=policy,
            description=description,
            schema=description.schema,
            dataset_id=dataset.id,
            releases_as_trained=policy.first_release is FirstRelease.AS_TRAINED,
        )
    backbone = load_backbone(services, spec.architecture, spec.schema)
    if isinstance(backbone, FrozenBackbone):
        spec = replace(spec, schema=backbone.schema(spec.schema))
    return replace(spec, backbone=backbone)


def load_records(services: Services, lease: Lease, model: ModelSpec, *, dimension: int) -> RunData:
    """Read records, fix which of them the run may use, and drop all others.

    A run that has sums to subtract from reads only what left them, and what it evaluates on. Any
    other reads the whole dataset, and the selection comes last, so that records forgotten while
    shards are read are left out. The plan depends on ``dimension``, the number of trained weights.

    Raises:
        RunFailedError: no record is left to train on.
        LeaseLostError: another worker holds the run.
    """
    stored = None if lease.kind is RunKind.TRAIN else _stored_sums(services, lease)
    if stored is not None:
        selection = _begin(services, lease, dimension)
        data = _less_what_left(services, lease, model, selection, stored)
        if data is not None:
            return data
        shards = read_shards(services, model.dataset_id, model.backbone, check=lease.check)
        return selected(model, selection, shards)
    with services.database.transaction() as session:
        known = {shard.id for shard in datasets.shards(session, model.dataset_id)}
    shards = read_shards(services, model.dataset_id, model.backbone, check=lease.check)
    return selected(model, _begin(services, lease, dimension, known), shards)


def _begin(
    services: Services,
    lease: Lease,
    dimension: int,
    shards: Collection[str] = (),
) -> Selection:
    """Return the records that the run may use; ``shards`` were read by one that trains."""
    selection = runs.begin(
        services.database,
        services.blobs,
        lease.run_id,
        lease.fencing_token,
        dimension=dimension,
        shards=shards,
    )
    if not selection.retain:
        raise RunFailedError(
            "no record is left to train on: push more records, or lower held_out_fraction"
        )
    return selection


def _less_what_left(
    services: Services,
    lease: Lease,
    model: ModelSpec,
    selection: Selection,
    stored: StatisticsFile,
) -> RunData | None:
    """Return the data of a run that subtracts; None where that cannot be done."""
    quantiser = _quantiser(model, selection)
    if quantiser is None:
        return None
    needed = stored.without(selection.retain) | selection.held_out | selection.forgotten
    parts = read_records(services, model.dataset_id, model.backbone, needed, check=lease.check)
    summed = None if parts is None else sums_less(parts, selection.retain, quantiser, stored)
    if parts is None or summed is None:
        return None
    return _run_data(model, selection, parts, summed)


def selected(model: ModelSpec, selection: Selection, shards: list[Part]) -> RunData:
    """Return the selected records, or their sums where the plan asks for nothing else of them.

    Args:
        model: the definition.
        selection: the records.
        shards: all of the dataset; each is taken from the list before the next one is copied.

    Raises:
        RunFailedError: a record is in no shard, or in two.
    """
    quantiser = _quantiser(model, selection)
    summed = None if quantiser is None else sums_over(shards, selection.retain, quantiser)
    return _run_data(model, selection, shards, summed)


def _run_data(
    model: ModelSpec, selection: Selection, parts: list[Part], summed: Summed | None
) -> RunData:
    retain = _Selected(frozenset() if summed else selection.retain, model.schema)
    held_out = _Selected(selection.held_out, model.schema)
    forgotten = _Selected(selection.forgotten, model.schema)
    while parts:
        part = parts.pop()  # free each part before the next one is copied
        retain.take(*part)
        held_out.take(*part)
        forgotten.take(*part)
    batch_of = selection.batch_of
    return RunData(
        retain=retain.examples(),
        held_out=held_out.examples(),
        forgotten=forgotten.examples(),
        plan=selection.plan,
        batch_of=np.array([batch_of[seq] for seq in retain.seqs() if batch_of], dtype=np.int64),
        summed=summed,
    )


def _quantiser(model: ModelSpec, selection: Selection) -> Quantiser | None:
    """Return what makes sums of records; None where the plan has no use for them."""
    mechanism = mechanism_of(selection.plan)
    if not isinstance(mechanism, SufficientStatistics):
        return None
    return Quantiser(model.schema, mechanism.feature_range)


def _stored_sums(services: Services, lease: Lease) -> StatisticsFile | None:
    """Return the sums that belong to the head; None if they are gone or damaged."""
    with services.database.transaction() as session:
        head = registry.head_version(session, session.get_one(ModelRow, lease.model_id))
        blob_id = None if head is None else head.statistics_blob_id
    if blob_id is None:
        return None
    try:
        return StatisticsFile.from_bytes(services.blobs.read(blob_id))
    except (GoneError, CorruptObjectError):
        return None


class _Selected:
    """The selected records, copied shard by shard into arrays of the final size.

    They come in the order of their sequence numbers, whatever the shards' order: training may be a
    function of the records and their order.
    """

    def __init__(self, seqs: frozenset[int], schema: FeatureSchema) -> None:
        self._seqs = np.array(sorted(seqs), dtype=np.int64)
        self._schema = schema
        kept = schema.tokens or schema.dtype == "uint8"
        dtype = np.dtype(schema.dtype) if kept else np.float32
        self._features = np.empty((len(seqs), schema.size), dtype=dtype)
        self._labels = np.empty(len(seqs), dtype=np.int64)
        self._taken = np.zeros(len(seqs), dtype=bool)

    def take(self, seqs: np.ndarray, labels: np.ndarray, features: np.ndarray) -> None:
        """Copy a shard's selected records."""
        rows = np.flatnonzero(np.isin(seqs, self._seqs))
        places = np.searchsorted(self._seqs, seqs[rows])
        self._labels[places] = labels[rows]
        self._taken[places] = True
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            self._features[places[some]] = features[rows[some]]

    def seqs(self) -> list[int]:
        """Return the sequence numbers of the copied records, in their order."""
        taken: list[int] = self._seqs[self._taken].tolist()
        return taken

    def examples(self) -> Examples:
        """Return the copied records."""
        everything = bool(self._taken.all())
        features = self._features if everything else self._features[self._taken]
        return Examples.of_schema(features, self._labels[self._taken], self._schema)


def load_start(services: Services, lease: Lease) -> Mapping[str, torch.Tensor]:
    """Return what a ``certify`` or ``unlearn`` run starts from, or raise ``RunFailedError``."""
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

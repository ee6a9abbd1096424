"""Loads a run's records and initial weights."""

import hashlib
import mmap
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO, Final, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from sqlalchemy.orm import Session
from torch import nn

from app.domain.architectures import ArchitectureSpec, FeatureLayer
from app.domain.description import BackboneDescription, ModelDescription
from app.domain.errors import HeadMovedError, InvalidRecordsError, RunFailedError
from app.domain.heads import ridge_head
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.domain.schema import InputSchema
from app.domain.states import FirstRelease, RunKind
from app.evidence.certificates.weights_file import StoredTensor, WeightsFile
from app.ledger.member_trainings import read_as_head
from app.registry import repository as registry
from app.registry.backbones import backbone_of
from app.registry.datasets.columns.typed import kept_schema
from app.registry.datasets.service import schema_of
from app.registry.datasets.shards import unpack
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import ModelRow
from app.registry.tasks import task_of as stored_task
from app.runtime.settings import Settings
from app.services import Services
from workers.data.backbone import Backbone, FrozenBackbone, load_backbone, trainable
from workers.data.features import FeatureReader
from workers.data.member_records import MemberRecords
from workers.data.shards import Read, reader_of
from workers.data.streaming import Streamed
from workers.leases.lease import Lease
from workers.seal.write_guard import encoding
from workers.training.exact.summing import Summed
from workers.training.examples import Records
from workers.training.forms import InputForm
from workers.training.networks.architectures import build
from workers.training.part import Decode, Part, Wanted, places_of
from workers.training.tasks.built_in import CLASSIFICATION
from workers.training.tasks.catalogue import Encoder, encoder_of, form_of, task_of
from workers.training.tasks.task import Task

_MOST_SHOWN: Final = 20


def columns_by(encoder: Encoder, columns: pa.Schema) -> Decode:
    """Return what decodes shards, of which the encoder reads these columns.

    It raises ``RunFailedError`` for records that cannot be encoded, and names them by number, and
    ``WriteRefusedError`` where encoding would leave anything outside of memory.
    """

    def decode(content: bytes, wanted: Wanted) -> Part:
        seqs, rows = unpack(content, columns)
        places = np.arange(len(seqs)) if wanted is None else places_of(seqs, wanted)[0]
        if len(places) < len(seqs):
            seqs, rows = seqs[places], rows.take(places)
        if not len(seqs):  # what an operator's code makes of no row is not known
            return Part(seqs, {})
        try:
            with encoding():
                return Part(seqs, encoder(rows))
        except InvalidRecordsError as error:
            said = _in_words(error, seqs)
        raise RunFailedError(said)

    return decode


def _in_words(error: InvalidRecordsError, seqs: NDArray[np.int64]) -> str:
    """Return which records cannot be encoded; the service knows them by number alone."""
    lines = []
    for problem in error.problems[:_MOST_SHOWN]:
        record = "all" if problem.row is None else f"record {seqs[problem.row]}"
        lines.append(problem.about(record))
    return (
        f"{error.count} fault(s) in records that the task cannot encode; nothing was trained. "
        "'expunge model check --data FILE' finds their ids in your own file: mend these records, "
        "or have them forgotten.\n" + "\n".join(lines)
    )


_KINDS: Final[Mapping[str, str]] = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint"}


@dataclass(frozen=True)
class ModelSpec:
    """What a run needs to know about its model.

    Attributes:
        description: what the file of its next version says of it.
        schema: of what its network reads: records, or a frozen backbone's features of them.
        columns: those that its task reads, as its dataset has them.
        task: what it learns.
    """

    description: ModelDescription
    recipe: TrainingRecipe
    policy: Policy
    schema: InputSchema
    dataset_id: str
    columns: pa.Schema
    task: Task = CLASSIFICATION
    backbone: Backbone | None = None

    @property
    def architecture(self) -> ArchitectureSpec:
        """Its network."""
        return self.description.architecture

    @property
    def releases_as_trained(self) -> bool:
        """Whether a training's result is published as it is."""
        return self.policy.first_release is FirstRelease.AS_TRAINED

    @cached_property
    def decode(self) -> Decode:
        """What makes the task's tensors of a stored shard."""
        task = self.description.task
        return columns_by(encoder_of(task, self.task), self.columns)

    @cached_property
    def form(self) -> InputForm:
        """What the encoded records that its network reads look like."""
        return form_of(self.description.task, self.task, self.schema)

    def factory(self, settings: Settings, *, in_full: bool = False) -> Callable[[], nn.Module]:
        """Return what builds the network, or each member of an ensemble, without a frozen backbone.

        With ``in_full``, exceptions of the operator's code are shown in full: only for as long as
        no record was read.
        """
        return lambda: build(
            self.architecture.member,
            input_shape=self.schema.shape,
            classes=self.schema.classes,
            allowed_factories=settings.allowed_factories,
            tokens=self.schema.tokens,
            task=self.description.task,
            in_full=in_full,
        )


@dataclass(frozen=True)
class RunData:
    """The records of one run, in memory or read as they are needed.

    Attributes:
        retain: records to train on; none of them is forgotten.
        batch_of: int64 [n], the fixed batch of each retained record; empty if batches are random.
        summed: the sums over the retained records, which are all that a ridge head needs of them;
            ``retain`` is empty then.
        members: the records of the members of an ensemble that are to be trained; ``retain`` is
            empty then.
    """

    retain: Records
    held_out: Records
    plan: Plan
    batch_of: NDArray[np.int64]
    summed: Summed | None = None
    members: MemberRecords | None = None

    def close(self) -> None:
        """End what is still being read; safe to repeat."""
        for records in (self.retain, self.held_out):
            if isinstance(records, Streamed):
                records.close()


def load_model(services: Services, model_id: str) -> ModelSpec:
    """Return a model's definition; no record was read yet.

    Raises:
        RunFailedError: its backbone or its task cannot be used; what the operator's code raised is
            shown in full.
    """
    with services.database.transaction() as session:
        model = session.get_one(ModelRow, model_id)
        dataset = session.get_one(DatasetRow, model.dataset_id)
        policy = Policy.from_json(model.policy)
        recipe = TrainingRecipe.from_json(model.recipe)
        described = _described(session, model, dataset)
        dataset_id, kept = dataset.id, kept_schema(schema_of(dataset))
    task = task_of(
        described.task,
        allowed=services.settings.allowed_factories,
        in_full=True,
        calibrated=described.architecture.name != ridge_head.NAME,
    )
    backbone = load_backbone(services, described.architecture, described.schema)
    schema = described.schema
    if isinstance(backbone, FrozenBackbone):
        schema = backbone.schema(schema)
    return ModelSpec(
        description=described,
        recipe=recipe,
        policy=policy,
        schema=schema,
        dataset_id=dataset_id,
        columns=pa.schema([each for each in kept if each.name in described.task.columns]),
        task=task,
        backbone=backbone,
    )


def _described(session: Session, model: ModelRow, dataset: DatasetRow) -> ModelDescription:
    """Return the description of a model's next version.

    While a run of the model goes on, only that run can publish, so that the number stays the next.
    """
    architecture = ArchitectureSpec.from_json(model.architecture)
    return ModelDescription(
        model=model.name,
        version=registry.next_number(session, model.id),
        architecture=architecture,
        task=stored_task(model),
        backbone=_backbone(session, architecture),
        record_id=dataset.schema["record_id"],
    )


def _backbone(session: Session, architecture: ArchitectureSpec) -> BackboneDescription | None:
    row = backbone_of(session, architecture)
    if row is None or row.sha256 is None or architecture.backbone is None:
        return None
    return BackboneDescription(
        name=row.name,
        sha256=row.sha256,
        frozen=architecture.backbone.frozen,
        architecture=ArchitectureSpec.from_json(row.architecture),
        classes=row.classes,
        layers=FeatureLayer.all_from_json(row.layers),
    )


@dataclass(frozen=True)
class Readers:
    """What reads a model's shards.

    Attributes:
        first: reads a shard for the first time in a run; a frozen backbone's features may have to
            be computed and stored for it.
        again: reads it after that, and writes nothing.
        anew: reads the records; computes a frozen backbone's features again, and compares them.
    """

    first: Read
    again: Read
    anew: Read


def readers_for(
    services: Services, model: ModelSpec, *, check: Callable[[], None] = lambda: None
) -> Readers:
    """Return what reads a model's records: as they are, or as its frozen backbone's features.

    ``check`` is called between batches of a backbone's work; its exceptions stop it.
    """
    if not isinstance(model.backbone, FrozenBackbone):
        read = reader_of(services, model.decode)
        return Readers(read, read, read)
    described = model.description
    reader = FeatureReader(
        services,
        model.backbone,
        form_of(described.task, model.task, described.schema),
        model.decode,
        reading_sha256=described.task.reading_digest,
        check=check,
    )
    return Readers(reader.read, reader.read_stored, reader.anew)


def load_start(
    services: Services, lease: Lease, *, head_id: str | None = None
) -> Mapping[str, torch.Tensor]:
    """Return what a run that does not train anew starts from, or raise ``RunFailedError``.

    With ``head_id``, raise ``HeadMovedError`` if the head is another version by now.
    """
    with services.database.transaction() as session:
        model = session.get_one(ModelRow, lease.model_id)
        architecture = ArchitectureSpec.from_json(model.architecture)
        head = None if lease.kind is RunKind.CERTIFY else registry.head_version(session, model)
        if head_id not in (None, model.head_version_id):
            raise HeadMovedError("another version was published meanwhile")
        blob_id = model.imported_blob_id
        if lease.kind is not RunKind.CERTIFY:
            blob_id = None if head is None else head.blob_id
    if blob_id is None:
        raise RunFailedError("the model has no weights to start from: upload them again")
    as_head = nullcontext() if head is None else read_as_head(services.database, head)
    with as_head, closing(services.blobs.open(blob_id)) as parts:
        content = mmap.mmap(-1, max(1, parts.size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for part in parts:
            content.write(part)
    # The lineage's history accounts for exactly the certified version.
    if head is not None and hashlib.sha256(content).hexdigest() != head.sha256:
        raise RunFailedError("the initial weights are not the version's: run 'expunge log fsck'")
    tensors = WeightsFile(cast("BinaryIO", content)).tensors()
    return trainable(
        architecture,
        {name: _view_of(content, each).reshape(each.shape) for name, each in tensors.items()},
    )


def _view_of(content: mmap.mmap, stored: StoredTensor) -> torch.Tensor:
    dtype = _dtype_of(stored)
    if stored.size == 0:
        return torch.empty(0, dtype=dtype)
    if stored.start % dtype.itemsize == 0:
        return torch.frombuffer(content, dtype=dtype, count=stored.size, offset=stored.start)
    return torch.frombuffer(bytearray(content[stored.start : stored.end]), dtype=dtype)


def _dtype_of(stored: StoredTensor) -> torch.dtype:
    if stored.dtype == "BOOL":
        return torch.bool
    kind = stored.dtype.rstrip("0123456789")
    dtype: torch.dtype = getattr(torch, _KINDS[kind] + stored.dtype.removeprefix(kind))
    return dtype

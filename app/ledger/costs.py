"""What a run takes, and what a release leaves on disk: as earlier ones tell, if there are any."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.domain.architectures import ArchitectureSpec
from app.domain.heads import boosted_trees, linear_head, ridge_head
from app.domain.states import RunKind, RunState, arithmetic_s
from app.ledger.tables import RunRow
from app.planning.mechanisms.sufficient_statistics import SufficientStatistics
from app.registry import statistics_file
from app.registry.backbones import backbone_of, parameters_of_model
from app.registry.datasets import features
from app.registry.datasets import repository as datasets
from app.registry.tables import BackboneRow, LineageRecordsRow, ModelRow, VersionRow
from app.registry.tasks import task_of
from app.registry.training_set import BYTES_OF_FACTS
from app.storage.tables import BlobRow

_NEWEST: Final = 50
_HEADS: Final = (boosted_trees.NAME, linear_head.NAME, ridge_head.NAME)
"""Their weights are float64."""


@dataclass(frozen=True)
class Seconds:
    """From a run's lease to its publication: the median, and the ends of the spread."""

    expected: float
    least: float
    most: float


class Measured(NamedTuple):
    """An earlier run; ``rest_s`` is what it took beside its ``gradients``."""

    mechanism: str
    unlearned: bool
    gradients: float
    arithmetic_s: float
    rest_s: float


def measured(session: Session, model: ModelRow) -> list[Measured]:
    """Return the newest runs of a model, and of others of its architecture on its dataset."""
    took = func.extract("epoch", RunRow.finished_at - RunRow.started_at)
    query = select(RunRow.kind, RunRow.plan, RunRow.phase_seconds, took).join(ModelRow)
    of_data = ModelRow.dataset_id == model.dataset_id
    query = query.where(of_data, ModelRow.architecture == model.architecture)
    query = query.where(RunRow.state == RunState.PUBLISHED).order_by(RunRow.created_at.desc())
    found = list[Measured]()
    for kind, plan, phases, seconds in session.execute(query.limit(_NEWEST)):
        arithmetic = arithmetic_s(phases)
        gradients, rest = plan["predicted"]["gradient_computations"], float(seconds) - arithmetic
        unlearned = kind == RunKind.UNLEARN
        found.append(Measured(plan["mechanism"], unlearned, gradients, arithmetic, rest))
    return found


def seconds_of(earlier: Sequence[Measured], mechanism: str, gradients: float) -> Seconds | None:
    """Return how long a run of so many gradients takes; None where none like it was measured.

    Runs that unlearned tell it, if there are any, and else trainings.
    """
    own = [each for each in earlier if each.mechanism == mechanism]
    alike = [each for each in own if (each.gradients > 0) == (gradients > 0)]
    found = [
        each.rest_s + each.arithmetic_s * (gradients / each.gradients if gradients else 1.0)
        for each in [each for each in alike if each.unlearned] or alike
    ]
    return Seconds(median(found), min(found), max(found)) if found else None


@dataclass(frozen=True)
class Disk:
    """How many bytes a model is on disk, without its dataset; a new version takes the place of one.

    Attributes:
        version_bytes: a version's weights, and the sums beside them if its mechanism keeps some.
            Null where no version of the architecture exists and its weights cannot be counted.
        records_bytes: what is kept of its records: the side and member of each, and the features of
            a frozen backbone, which models share.
        measured: whether the version's bytes are those of one that was stored.
    """

    version_bytes: int | None
    records_bytes: int
    measured: bool


def disk_by(
    session: Session, model: ModelRow, mechanisms: Collection[str], *, retained: int
) -> dict[str, Disk]:
    """Return what a model that learns from so many records takes, by mechanism."""
    architecture, task = ArchitectureSpec.from_json(model.architecture), task_of(model)
    count = parameters_of_model(session, architecture, task, task.schema())
    backbone = backbone_of(session, architecture)
    stored, sums = _newest(session, model)
    weights = stored
    if weights is None and count is not None:
        weights = count * (8 if architecture.member.name in _HEADS else 4)
        weights += 0 if backbone is None else backbone.size_bytes or 0
    if count is not None and architecture.name == ridge_head.NAME:
        width, outputs = count // task.outputs - 1, task.outputs
        size = statistics_file.size_of(retained, features=width, outputs=outputs)
        sums = {SufficientStatistics.name: size, **sums}
    records = _of_records(session, model, backbone if architecture.on_features else None)
    return {
        each: Disk(
            version_bytes=None if weights is None else weights + sums.get(each, 0),
            records_bytes=records,
            measured=stored is not None,
        )
        for each in mechanisms
    }


def _newest(session: Session, model: ModelRow) -> tuple[int | None, dict[str, int]]:
    """Return the bytes of the newest weights of a model's kind, and by mechanism those of sums."""
    query = select(VersionRow.size_bytes, RunRow.plan["mechanism"].astext, BlobRow.size_bytes)
    query = query.join(RunRow, RunRow.id == VersionRow.run_id)
    query = query.join(ModelRow, ModelRow.id == VersionRow.model_id)
    query = query.outerjoin(BlobRow, BlobRow.id == VersionRow.statistics_blob_id)
    query = query.where(
        ModelRow.dataset_id == model.dataset_id,
        ModelRow.architecture == model.architecture,
        ModelRow.task == model.task,
    )
    found = session.execute(query.order_by(VersionRow.created_at.desc()).limit(_NEWEST)).all()
    sums = {mechanism: size for _, mechanism, size in reversed(found) if size is not None}
    return (found[0][0] if found else None), sums


def _of_records(session: Session, model: ModelRow, frozen: BackboneRow | None) -> int:
    """Return the bytes that are kept of a model's records, or will be."""
    rows, _, _ = datasets.counts(session, model.dataset_id)
    kept, ranks = LineageRecordsRow.facts, LineageRecordsRow.ranks
    size = func.octet_length(kept) + func.coalesce(func.octet_length(ranks), 0)
    query = select(func.sum(size)).where(LineageRecordsRow.model_id == model.id)
    found = session.scalar(query) or rows * BYTES_OF_FACTS
    if frozen is None:
        return int(found)
    stored = features.stored_bytes(session, model.dataset_id, frozen.id)
    return int(found) + (stored or 2 * rows * (frozen.features or 0))

"""Destroying everything that came from a dataset, and one signed entry of the log that says so.

Each model is archived in a transaction of its own, which takes locks as workers do; the dataset,
the backbones and the entry follow in the last one. A call that broke off is repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from app.delivery.publishing.tables import CopyRow, PlacementRow
from app.domain import strict_json
from app.domain.errors import ConflictError
from app.domain.states import BlobState, VersionState
from app.evidence import log
from app.evidence.certificates.bundle import LogProof
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log.tables import LogEntryRow
from app.ledger.certificates.bundles import log_proof
from app.ledger.models import endings
from app.registry import backbones as public
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import BackboneRow, ModelRow, VersionRow
from app.runtime.database import Database
from app.storage.tables import BlobRow

KIND: Final = "dataset.destroyed"
BEYOND_REACH: Final = (
    "Files that others downloaded, and what they made of them: this service cannot remove them.",
    "Backbones and weights that were trained elsewhere on these data, unless they are named here.",
)


@dataclass(frozen=True)
class GoneVersion:
    """A version that was released, or might have been."""

    number: int
    sha256: str
    state: str


@dataclass(frozen=True)
class GoneCopy:
    """A version at a publishing target, and when it was seen to be gone there."""

    target: str
    version: int
    sent_at: datetime
    removed_at: datetime | None


@dataclass(frozen=True)
class GoneModel:
    """A model that learned from the dataset, or stands on a backbone that did."""

    name: str
    archived_at: datetime | None
    versions: Sequence[GoneVersion]
    copies: Sequence[GoneCopy]


@dataclass(frozen=True)
class GoneBackbone:
    """A backbone that is named as derived, or whose weights are a version's of such a model."""

    name: str
    sha256: str | None
    archived_at: datetime | None


@dataclass(frozen=True)
class Destruction:
    """What came from a dataset and goes with it, or went.

    Attributes:
        dataset: Its name.
        records: How many it holds that are not erased.
        archived_at: When its records were given up. Null if they were not.
        models: Those that learned from it, or stand on a backbone that did.
        backbones: Those that are named, and those whose weights are one of these models'.
        beyond_reach: What this service cannot destroy, in words.
        complete: Whether nothing is left: no readable weights, no copies at targets, no records.
        statement: The signed log's entry that lists all of this, with its proof, once it was made.
    """

    dataset: str
    records: int
    archived_at: datetime | None
    models: Sequence[GoneModel]
    backbones: Sequence[GoneBackbone]
    beyond_reach: Sequence[str]
    complete: bool
    statement: LogProof | None


def preview(session: Session, name: str, named: Sequence[str] = ()) -> Destruction:
    """Return what goes with a dataset, or went; backbones are ``named`` as derived from it."""
    dataset = datasets.dataset_named(session, name)
    entry = _entry(session, dataset)
    if entry is not None:
        named = list(strict_json.loads(entry.body)["backbones"])
    models, standing = _derived(session, dataset, named)
    shown = [
        GoneModel(
            each.name,
            each.archived_at,
            [GoneVersion(v.number, v.sha256, v.state) for v in _versions(session, each)],
            copies(session, each),
        )
        for each in models
    ]
    records, forgotten, _ = datasets.counts(session, dataset.id)
    mine = or_(BlobRow.dataset_id == dataset.id, BlobRow.id.in_([row.blob_id for row in standing]))
    readable = select(BlobRow.id).where(mine, BlobRow.state != BlobState.SHREDDED)
    gone = (
        session.scalar(readable.limit(1)) is None
        and dataset.archived_at is not None
        and records + forgotten == 0
        and None not in {*(m.archived_at for m in models), *(b.archived_at for b in standing)}
        and all(v.state == VersionState.SHREDDED for each in shown for v in each.versions)
        and all(copy.removed_at is not None for each in shown for copy in each.copies)
    )
    return Destruction(
        dataset=name,
        records=records + forgotten,
        archived_at=dataset.archived_at,
        models=shown,
        backbones=[GoneBackbone(row.name, row.sha256, row.archived_at) for row in standing],
        beyond_reach=BEYOND_REACH,
        complete=gone,
        statement=None if entry is None else log_proof(session, entry.index, entry.body),
    )


def destroy(
    database: Database, signer: StatementSigner, name: str, named: Sequence[str] = ()
) -> None:
    """Archive everything that came from a dataset, and say so in the log; again, go on with it.

    ``ConflictError`` if a model is defined on it meanwhile, a backbone serves other models, or the
    entry that was signed leaves out a backbone that is named now.
    """
    with database.transaction() as session:
        dataset = datasets.dataset_named(session, name)
        entry = _entry(session, dataset)
        if entry and not {*named} <= strict_json.loads(entry.body)["backbones"].keys():
            raise ConflictError("the signed statement leaves out a backbone that is named now")
        models, _ = _derived(session, dataset, named)
        live = [model.name for model in models if model.archived_at is None]
    for model in live:
        with database.transaction() as session:
            endings.archive_model(session, model)
    with database.transaction() as session:
        dataset = datasets.lock_dataset_named(session, name)
        if _entry(session, dataset) is not None:
            return
        models, standing = _derived(session, dataset, named)
        for backbone in standing:
            if backbone.archived_at is None:
                endings.archive_backbone(session, backbone.name)
        if dataset.archived_at is None:
            endings.archive_dataset(session, name)
        log.append(
            session,
            KIND,
            dataset=dataset.id,
            name=name,
            records=datasets.counts(session, dataset.id)[2],
            models=[
                {
                    "name": each.name,
                    "versions": {v.number: v.sha256 for v in _versions(session, each)},
                }
                for each in models
            ],
            backbones={row.name: row.sha256 for row in standing},
            beyond_reach=list(BEYOND_REACH),
        )
        log.checkpoint_at_commit(session, signer)


def copies(session: Session, model: ModelRow) -> list[GoneCopy]:
    """Return all copies of a model that were ever sent to targets, the newest version first."""
    query = (
        select(PlacementRow.target, VersionRow.number, CopyRow.sent_at, CopyRow.removed_at)
        .join(PlacementRow, PlacementRow.id == CopyRow.placement_id)
        .join(VersionRow, VersionRow.id == CopyRow.version_id)
        .where(PlacementRow.model_id == model.id)
        .order_by(VersionRow.number.desc(), PlacementRow.target, CopyRow.sent_at)
    )
    return [GoneCopy(*row) for row in session.execute(query)]


def _derived(
    session: Session, dataset: DatasetRow, named: Sequence[str]
) -> tuple[list[ModelRow], list[BackboneRow]]:
    """Return the models on a dataset, backbones made of them, models on these, and so on."""
    standing = {row.id: row for row in (public.backbone_named(session, each) for each in named)}
    models: dict[str, ModelRow] = {}
    while True:
        on = ModelRow.architecture["backbone"]["name"].astext
        mine = or_(ModelRow.dataset_id == dataset.id, on.in_([r.name for r in standing.values()]))
        query = select(ModelRow).where(mine, ModelRow.deleted_at.is_(None))
        models = {row.id: row for row in session.scalars(query.order_by(ModelRow.name))}
        weights = select(VersionRow.sha256).where(VersionRow.model_id.in_(models))
        made = select(BackboneRow).where(
            BackboneRow.sha256.in_(weights), BackboneRow.deleted_at.is_(None)
        )
        found = {row.id: row for row in session.scalars(made)}
        if found.keys() <= standing.keys():
            return list(models.values()), sorted(standing.values(), key=lambda row: row.name)
        standing |= found


def _versions(session: Session, model: ModelRow) -> Sequence[VersionRow]:
    query = select(VersionRow).where(VersionRow.model_id == model.id)
    return session.scalars(query.order_by(VersionRow.number)).all()


def _entry(session: Session, dataset: DatasetRow) -> LogEntryRow | None:
    mine = func.substring(LogEntryRow.body, '"dataset":"([^"]*)"') == dataset.id
    return session.scalar(select(LogEntryRow).where(LogEntryRow.kind == KIND, mine))

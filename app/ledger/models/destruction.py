"""Destroying everything that came from a dataset, and one signed entry of the log that says so.

All of it is one transaction: a call that breaks off has done nothing. What was derived is looked up
again while the log is locked, and so do those who bring weights look for such entries: whichever
commits later sees the other.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from app.delivery.publishing.tables import CopyRow, PlacementRow
from app.domain import strict_json
from app.domain.errors import ConflictError, GoneError
from app.domain.states import ACTIVE_RUN_STATES, BlobState, VersionState
from app.evidence import log
from app.evidence.certificates.bundle import LogProof
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log.tables import LogEntryRow
from app.ledger import repository
from app.ledger.certificates.bundles import log_proof
from app.ledger.models import endings
from app.ledger.tables import RunRow
from app.registry import backbones as public
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import BackboneRow, ModelRow, VersionRow
from app.runtime.database import Database
from app.storage.tables import BlobRow

_KIND: Final = "dataset.destroyed"
_ATTEMPTS: Final = 5
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
    """A model that learned from the dataset, or began with weights that came from it."""

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
        models: Those that learned from it, stand on such a backbone, or began with their weights.
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
    models, standing = _derived(session, dataset, named)
    shown = [with_copies(session, each) for each in models]
    records, forgotten, _ = datasets.counts(session, dataset.id)
    mine = or_(BlobRow.dataset_id == dataset.id, BlobRow.id.in_([row.blob_id for row in standing]))
    beside = BlobRow.dataset_id.in_([each.dataset_id for each in models])  # features, runs' results
    given_up = and_(beside, BlobRow.state == BlobState.DOOMED)
    readable = select(BlobRow.id).where(
        or_(and_(mine, BlobRow.state != BlobState.SHREDDED), given_up)
    )
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
    """Archive everything that came from a dataset, and say so in the log.

    Another call changes nothing, unless a backbone is named that the entry leaves out: then another
    entry lists everything. ``ConflictError`` if more models keep being started meanwhile.
    """
    for _ in range(_ATTEMPTS):
        with suppress(ConflictError), database.transaction() as session:
            return _destroy(session, signer, name, named)
    raise ConflictError(f"models kept being started on dataset {name!r}: destroy it again")


def _destroy(session: Session, signer: StatementSigner, name: str, named: Sequence[str]) -> None:
    dataset, models, standing = _locked(session, name, named)
    for model in models:
        if model.archived_at is None:
            endings.archive_model(session, model.name)
    for backbone in standing:
        if backbone.archived_at is None:
            endings.archive_backbone(session, backbone.name)
    if dataset.archived_at is None:
        endings.archive_dataset(session, name)
    stated: dict[str, Any] = {
        "models": [
            {
                "id": each.id,
                "name": each.name,
                "versions": {str(v.number): v.sha256 for v in _versions(session, each)},
            }
            for each in models
        ],
        "backbones": [{"id": b.id, "name": b.name, "sha256": b.sha256} for b in standing],
    }
    entry = _entry(session, dataset)
    before = {} if entry is None else strict_json.loads(entry.body)
    if before | stated == before:
        return
    records = datasets.counts(session, dataset.id)[2]
    facts = {"name": name, "records": records, "beyond_reach": list(BEYOND_REACH), **stated}
    log.append(session, _KIND, dataset=dataset.id, **facts)
    log.checkpoint_at_commit(session, signer)

    def require_no_more(at_end: Session) -> None:
        if _derived(at_end, dataset, named) != (models, standing):
            raise ConflictError("something more was derived meanwhile")

    log.examine_at_commit(session, require_no_more)


def _locked(
    session: Session, name: str, named: Sequence[str]
) -> tuple[DatasetRow, list[ModelRow], list[BackboneRow]]:
    """Lock a dataset and all that was made of it in the one order: runs first, models last."""
    models, standing = _derived(session, datasets.dataset_named(session, name), named)
    held = {run.id for each in models for run in repository.lock_active_runs(session, each.id)}
    dataset = datasets.lock_dataset_named(session, name)
    for kind, rows in ((BackboneRow, standing), (ModelRow, models)):
        query = select(kind).where(kind.id.in_([row.id for row in rows])).order_by(kind.id)
        session.scalars(query.with_for_update().execution_options(populate_existing=True)).all()
    going = select(RunRow.id).where(
        RunRow.model_id.in_([each.id for each in models]), RunRow.state.in_(ACTIVE_RUN_STATES)
    )
    found = _derived(session, dataset, named)
    if found != (models, standing) or not held.issuperset(session.scalars(going)):
        raise ConflictError("something was started meanwhile")
    return dataset, models, standing


def refuse_destroyed(session: Session, sha256: str) -> None:
    """Refuse weights that a destruction has named, as the session commits: ``GoneError``."""

    def require_unnamed(at_end: Session) -> None:
        names = (LogEntryRow.kind == _KIND, LogEntryRow.body.contains(f'"{sha256}"'))
        if at_end.scalar(select(LogEntryRow.index).where(*names).limit(1)) is not None:
            raise GoneError("these weights came from a dataset that was destroyed with all of them")

    log.examine_at_commit(session, require_unnamed)


def with_copies(session: Session, model: ModelRow) -> GoneModel:
    """Return a model's versions, and copies at targets, the newest version first."""
    query = (
        select(PlacementRow.target, VersionRow.number, CopyRow.sent_at, CopyRow.removed_at)
        .join(PlacementRow, PlacementRow.id == CopyRow.placement_id)
        .join(VersionRow, VersionRow.id == CopyRow.version_id)
        .where(PlacementRow.model_id == model.id)
        .order_by(VersionRow.number.desc(), PlacementRow.target, CopyRow.sent_at)
    )
    versions = [GoneVersion(v.number, v.sha256, v.state) for v in _versions(session, model)]
    copies = [GoneCopy(*row) for row in session.execute(query)]
    return GoneModel(model.name, model.archived_at, versions, copies)


def _derived(
    session: Session, dataset: DatasetRow, named: Sequence[str]
) -> tuple[list[ModelRow], list[BackboneRow]]:
    """Return the models on a dataset, backbones made of them, models on these, and so on.

    Those that the entry lists are among them.
    """
    entry = _entry(session, dataset)
    before = [] if entry is None else strict_json.loads(entry.body)["backbones"]
    rows = [public.backbone_named(session, each) for each in named]
    rows += [session.get_one(BackboneRow, each["id"]) for each in before]
    standing, models = {row.id: row for row in rows}, dict[str, ModelRow]()
    body, on = LogEntryRow.body, ModelRow.architecture["backbone"]["name"].astext
    while True:
        found = len(standing) + len(models)
        of_models = select(VersionRow.sha256).where(VersionRow.model_id.in_(models))
        weights = {*session.scalars(of_models), *(row.sha256 for row in standing.values())} - {None}
        made = select(BackboneRow).where(
            BackboneRow.sha256.in_(weights), BackboneRow.deleted_at.is_(None)
        )
        standing |= {row.id: row for row in session.scalars(made)}
        brought = select(func.substring(body, '"model":"([^"]*)"')).where(
            LogEntryRow.kind == "weights.imported",
            func.substring(body, '"sha256":"([^"]*)"').in_(weights),
        )
        mine = or_(
            ModelRow.dataset_id == dataset.id,
            on.in_([row.name for row in standing.values()]),
            ModelRow.id.in_(brought),
        )
        query = select(ModelRow).where(mine, ModelRow.deleted_at.is_(None))
        models = {row.id: row for row in session.scalars(query.order_by(ModelRow.name))}
        if len(standing) + len(models) == found:
            return list(models.values()), sorted(standing.values(), key=lambda row: row.name)


def _versions(session: Session, model: ModelRow) -> Sequence[VersionRow]:
    query = select(VersionRow).where(VersionRow.model_id == model.id)
    return session.scalars(query.order_by(VersionRow.number)).all()


def _entry(session: Session, dataset: DatasetRow) -> LogEntryRow | None:
    """Return the newest entry about a dataset's destruction."""
    mine = func.substring(LogEntryRow.body, '"dataset":"([^"]*)"') == dataset.id
    query = select(LogEntryRow).where(LogEntryRow.kind == _KIND, mine)
    return session.scalar(query.order_by(LogEntryRow.index.desc()).limit(1))

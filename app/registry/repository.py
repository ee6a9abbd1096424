"""All SQL about models and versions."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, exists, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from app.domain.architectures import ENSEMBLE, Member
from app.domain.states import BlobState, VersionState
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database.queries import known
from app.storage.tables import BlobRow


def model_named(session: Session, name: str, *, lock: bool = False) -> ModelRow:
    """Return a model, or raise ``NotFoundError``; ``lock`` locks it and reads it afterwards."""
    query = select(ModelRow).where(ModelRow.name == name, ModelRow.deleted_at.is_(None))
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    return known(session.scalar(query), "model", name)


def find_model(session: Session, name: str) -> ModelRow | None:
    """Return a model or None."""
    query = select(ModelRow).where(ModelRow.name == name, ModelRow.deleted_at.is_(None))
    return session.scalar(query)


def models(
    session: Session,
    *,
    dataset: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> Sequence[ModelRow]:
    """Return the models by name, or a page of them, starting after the name ``after``."""
    query = select(ModelRow).where(ModelRow.deleted_at.is_(None))
    if dataset is not None:
        query = query.join(DatasetRow, DatasetRow.id == ModelRow.dataset_id)
        query = query.where(DatasetRow.name == dataset)
    if after is not None:
        query = query.where(ModelRow.name > after)
    return session.scalars(query.order_by(ModelRow.name).limit(limit)).all()


def model_names(session: Session) -> Sequence[str]:
    """Return the names of all models, in order, deleted ones included: their runs are listed."""
    return session.scalars(select(ModelRow.name).distinct().order_by(ModelRow.name)).all()


def models_of_dataset(session: Session, dataset_id: str) -> Sequence[ModelRow]:
    """Return the models trained on a dataset, locked in a fixed order."""
    query = select(ModelRow).where(ModelRow.dataset_id == dataset_id).order_by(ModelRow.id)
    return session.scalars(query.with_for_update()).all()


def models_on(
    session: Session,
    *,
    dataset_id: str | None = None,
    backbone: str | None = None,
    archived: bool = False,
) -> Sequence[str]:
    """Return the names of the models on a dataset or a backbone that are live, or archived."""
    ended = ModelRow.archived_at.is_not(None) if archived else ModelRow.archived_at.is_(None)
    query = select(ModelRow.name).where(ended, ModelRow.deleted_at.is_(None))
    if dataset_id is not None:
        query = query.where(ModelRow.dataset_id == dataset_id)
    if backbone is not None:
        query = query.where(ModelRow.architecture["backbone"]["name"].astext == backbone)
    return session.scalars(query.order_by(ModelRow.name)).all()


def models_to_retrain(session: Session) -> Sequence[ModelRow]:
    """Return the live models whose policies ask for new trainings."""
    asked = [
        ModelRow.policy[name].as_string().is_not(None)
        for name in ("retrain_every_s", "retrain_after_records")
    ]
    query = select(ModelRow).where(
        or_(*asked), ModelRow.archived_at.is_(None), ModelRow.deleted_at.is_(None)
    )
    return session.scalars(query.order_by(ModelRow.id)).all()


def ensembles(session: Session) -> Sequence[ModelRow]:
    """Return the live ensembles that have a version."""
    query = select(ModelRow).where(
        ModelRow.architecture["name"].as_string() == ENSEMBLE,
        *(ModelRow.head_version_id.is_not(None), ModelRow.archived_at.is_(None)),
        ModelRow.deleted_at.is_(None),
    )
    return session.scalars(query.order_by(ModelRow.id)).all()


def head_version(session: Session, model: ModelRow) -> VersionRow | None:
    """Return the lineage's head, published or private."""
    if model.head_version_id is None:
        return None
    return session.get_one(VersionRow, model.head_version_id)


def members_of(version: VersionRow | None) -> list[Member]:
    """Return a version's members."""
    return [Member.from_json(each) for each in (version and version.members) or ()]


def tracked_heads(session: Session, dataset: str) -> list[tuple[ModelRow, VersionRow]]:
    """Return a dataset's models whose training is tracked, with their heads."""
    query = (
        select(ModelRow, VersionRow)
        .join(VersionRow, VersionRow.id == ModelRow.head_version_id)
        .join(DatasetRow, DatasetRow.id == ModelRow.dataset_id)
        .where(DatasetRow.name == dataset, ModelRow.tracking.is_not(None))
    )
    return [(model, head) for model, head in session.execute(query)]


def version_numbered(session: Session, model: ModelRow, number: int) -> VersionRow:
    """Return one version, or raise ``NotFoundError``."""
    query = select(VersionRow).where(VersionRow.model_id == model.id, VersionRow.number == number)
    return known(session.scalar(query.where(is_shown())), f"version of {model.name}", str(number))


def has_released(model_id: str | InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """Return whether a model has ever released a version."""
    versions = aliased(VersionRow)
    return exists().where(versions.model_id == model_id, versions.withheld.is_(False))


def is_shown() -> ColumnElement[bool]:
    """Return whether others may see a version: it was released, or one that follows it."""
    return and_(VersionRow.state != VersionState.PRIVATE, has_released(VersionRow.model_id))


def released_versions(
    session: Session,
    model_id: str,
    *,
    state: VersionState | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> Sequence[VersionRow]:
    """Return a model's released versions, newest first, or a page, starting below ``before``."""
    query = select(VersionRow).where(VersionRow.model_id == model_id, is_shown())
    if state is not None:
        query = query.where(VersionRow.state == state)
    if before is not None:
        query = query.where(VersionRow.number < before)
    return session.scalars(query.order_by(VersionRow.number.desc()).limit(limit)).all()


def newest_version(session: Session, model_id: str) -> VersionRow | None:
    """Return a model's newest version, released or not."""
    query = select(VersionRow).where(VersionRow.model_id == model_id)
    return session.scalar(query.order_by(VersionRow.number.desc()).limit(1))


def version_of_run(session: Session, run_id: str, *, shown: bool = False) -> VersionRow | None:
    """Return the version that a run published; with ``shown``, only if others may see it."""
    query = select(VersionRow).where(VersionRow.run_id == run_id)
    return session.scalar(query.where(is_shown()) if shown else query)


def retired_and_shredded(session: Session) -> Sequence[VersionRow]:
    """Lock and return retired versions whose blobs are all shredded."""
    left = select(BlobRow.id).where(
        BlobRow.id.in_((VersionRow.blob_id, VersionRow.statistics_blob_id)),
        BlobRow.state != BlobState.SHREDDED,
    )
    query = (
        select(VersionRow)
        .where(VersionRow.state == VersionState.RETIRED, ~left.exists())
        .with_for_update(of=VersionRow, skip_locked=True)
    )
    return session.scalars(query).all()


def next_number(session: Session, model_id: str) -> int:
    """Return the number of a model's next version."""
    query = select(func.max(VersionRow.number)).where(VersionRow.model_id == model_id)
    return (session.scalar(query) or 0) + 1

"""All SQL about models and versions."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from app import log
from app.datasets.tables import DatasetRow
from app.domain.errors import NotFoundError
from app.domain.states import BlobState, VersionState
from app.registry.tables import ModelRow, VersionRow
from app.storage.tables import BlobRow


def model_named(session: Session, name: str, *, lock: bool = False) -> ModelRow:
    """Return a model, or raise ``NotFoundError``; ``lock`` locks it and reads it afterwards."""
    query = select(ModelRow).where(ModelRow.name == name)
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    row = session.scalar(query)
    if row is None:
        raise NotFoundError("model", name)
    return row


def find_model(session: Session, name: str) -> ModelRow | None:
    """Return a model or None."""
    return session.scalar(select(ModelRow).where(ModelRow.name == name))


def models(
    session: Session,
    *,
    dataset: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> Sequence[ModelRow]:
    """Return the models by name, or a page of them, starting after the name ``after``."""
    query = select(ModelRow)
    if dataset is not None:
        query = query.join(DatasetRow, DatasetRow.id == ModelRow.dataset_id)
        query = query.where(DatasetRow.name == dataset)
    if after is not None:
        query = query.where(ModelRow.name > after)
    return session.scalars(query.order_by(ModelRow.name).limit(limit)).all()


def models_of_dataset(session: Session, dataset_id: str) -> Sequence[ModelRow]:
    """Return the models trained on a dataset, locked in a fixed order."""
    query = select(ModelRow).where(ModelRow.dataset_id == dataset_id).order_by(ModelRow.id)
    return session.scalars(query.with_for_update()).all()


def learned_through(session: Session, dataset_id: str) -> int:
    """Return the highest sequence number that any model of a dataset has read, 0 if none."""
    query = select(func.max(ModelRow.trained_through)).where(ModelRow.dataset_id == dataset_id)
    return session.scalar(query) or 0


def head_version(session: Session, model: ModelRow) -> VersionRow | None:
    """Return the lineage's head, published or private."""
    if model.head_version_id is None:
        return None
    return session.get_one(VersionRow, model.head_version_id)


def version_numbered(session: Session, model: ModelRow, number: int) -> VersionRow:
    """Return one version, or raise ``NotFoundError``."""
    query = select(VersionRow).where(VersionRow.model_id == model.id, VersionRow.number == number)
    row = session.scalar(query)
    if row is None or row.state == VersionState.PRIVATE:
        raise NotFoundError(f"version of {model.name}", str(number))
    return row


def released_versions(
    session: Session,
    model_id: str,
    *,
    state: VersionState | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> Sequence[VersionRow]:
    """Return a model's released versions, newest first, or a page, starting below ``before``."""
    query = select(VersionRow).where(
        VersionRow.model_id == model_id, VersionRow.state != VersionState.PRIVATE
    )
    if state is not None:
        query = query.where(VersionRow.state == state)
    if before is not None:
        query = query.where(VersionRow.number < before)
    return session.scalars(query.order_by(VersionRow.number.desc()).limit(limit)).all()


def version_of_run(session: Session, run_id: str) -> VersionRow | None:
    """Return the version that a run published."""
    return session.scalar(select(VersionRow).where(VersionRow.run_id == run_id))


def retired_and_shredded(session: Session) -> Sequence[VersionRow]:
    """Lock and return retired versions whose blobs are shredded."""
    query = (
        select(VersionRow)
        .join(BlobRow, BlobRow.id == VersionRow.blob_id)
        .where(VersionRow.state == VersionState.RETIRED, BlobRow.state == BlobState.SHREDDED)
        .with_for_update(of=VersionRow, skip_locked=True)
    )
    return session.scalars(query).all()


def next_number(session: Session, model_id: str) -> int:
    """Return the number of a model's next version."""
    query = select(func.max(VersionRow.number)).where(VersionRow.model_id == model_id)
    return (session.scalar(query) or 0) + 1


def digest_of(row: ModelRow | Row[Any]) -> str:
    """Digest the part of a model that never changes; its salt prevents guessing it."""
    what = [row.name, row.dataset_id, row.weights_source, row.split_salt.hex()]
    return log.digest_of([what, row.architecture, row.recipe])

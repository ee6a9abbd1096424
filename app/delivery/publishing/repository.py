"""All SQL about placements and copies."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, func, or_, select, update
from sqlalchemy.orm import Session

from app.delivery.publishing.tables import CopyRow, PlacementRow
from app.domain.ids import new_id
from app.domain.release import Release
from app.evidence import log
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database.queries import known

LONGEST_DELAY_S = 300.0
"""From one failed attempt to the next, but for a fifth."""


def want(session: Session, model: ModelRow, target: str) -> PlacementRow:
    """Ask for a model to be at a target, now if that has failed so far; the model is locked."""
    row = _find(session, model, target)
    if row is None:
        row = PlacementRow(id=new_id("place"), model_id=model.id, target=target, is_wanted=False)
        session.add(row)
        session.flush()
    return _ask(session, row, is_wanted=True)


def unwant(session: Session, model: ModelRow, target: str) -> PlacementRow:
    """Ask for nothing of a model to be at a target, which is locked.

    Raises:
        NotFoundError: nothing of it was ever asked for there.
    """
    row = known(_find(session, model, target), "target of the model", target)
    return _ask(session, row, is_wanted=False)


def _ask(session: Session, row: PlacementRow, *, is_wanted: bool) -> PlacementRow:
    if row.is_wanted != is_wanted:
        row.is_wanted = is_wanted
        kind = "placement.wanted" if is_wanted else "placement.unwanted"
        log.append(session, kind, placement=row.id, model=row.model_id, target=row.target)
    session.flush()
    _wake(session, PlacementRow.id == row.id)
    session.refresh(row)
    return row


def wake(session: Session, model_id: str) -> None:
    """Have a model's targets brought up to date once the caller's transaction has committed.

    To be called wherever another version, or none, is served from then on.
    """
    _wake(session, PlacementRow.model_id == model_id)


def _wake(session: Session, which: ColumnElement[bool]) -> None:
    now = func.clock_timestamp()
    # In one order, so that two who wake several do not wait for each other.
    query = select(PlacementRow.id).where(which).order_by(PlacementRow.id).with_for_update()
    found = session.scalars(query).all()
    if not found:
        return
    session.execute(
        update(PlacementRow)
        .where(PlacementRow.id.in_(found))
        .values(
            generation=PlacementRow.generation + 1,
            attempts=0,
            due_at=now,
            unsettled_since=func.coalesce(PlacementRow.unsettled_since, now),
        )
        .execution_options(synchronize_session=False)
    )


def _find(session: Session, model: ModelRow, target: str) -> PlacementRow | None:
    query = select(PlacementRow).where(
        PlacementRow.model_id == model.id, PlacementRow.target == target
    )
    return session.scalar(query.with_for_update())


def of_model(session: Session, model_id: str) -> Sequence[PlacementRow]:
    """Return a model's placements by target: wanted ones, and those from which it must still go."""
    is_shown = or_(PlacementRow.is_wanted, PlacementRow.due_at.is_not(None))
    query = select(PlacementRow).where(PlacementRow.model_id == model_id, is_shown)
    return session.scalars(query.order_by(PlacementRow.target)).all()


def numbers_present(session: Session, placement_id: str) -> Sequence[int]:
    """Return the numbers of the versions that may be at a target, newest first."""
    query = (
        select(VersionRow.number)
        .join(CopyRow, CopyRow.version_id == VersionRow.id)
        .where(CopyRow.placement_id == placement_id, CopyRow.removed_at.is_(None))
    )
    return session.scalars(query.order_by(VersionRow.number.desc())).all()


def due(session: Session, *, limit: int) -> Sequence[tuple[str, str]]:
    """Return the ids and targets of placements whose time has come, the longest due first."""
    now = func.clock_timestamp()
    # Due later than any delay: the clock was set back.
    latest = now + timedelta(seconds=2 * LONGEST_DELAY_S)
    is_due = or_(PlacementRow.due_at <= now, PlacementRow.due_at > latest)
    query = select(PlacementRow.id, PlacementRow.target).where(is_due)
    rows = session.execute(query.order_by(PlacementRow.due_at).limit(limit))
    return [(placement_id, target) for placement_id, target in rows]


def locked(session: Session, placement_id: str) -> PlacementRow:
    """Return a placement, locked."""
    return session.get_one(PlacementRow, placement_id, with_for_update=True)


def generation(connection: Connection, placement_id: str) -> int:
    """Return how often what is wanted has changed."""
    query = select(PlacementRow.generation).where(PlacementRow.id == placement_id)
    return connection.execute(query).scalar_one()


def note_begun(session: Session, row: PlacementRow, release: Release | None) -> bool:
    """Note what should be at a target; return whether it is not known to be there."""
    row.version_id = None if release is None else release.version_id
    row.certificate_id = None if release is None else release.certificate_id
    present = None if release is None else _present(session, row.id).get(release.version_id)
    return release is not None and (present is None or present.placed_at is None)


def note_sent(session: Session, row: PlacementRow, release: Release, *, generation: int) -> None:
    """Note that a version may be at a target, before its first byte is sent.

    If something else is wanted than as of ``generation``, nothing is noted, and nothing is sent.
    """
    if row.generation != generation or release.version_id in _present(session, row.id):
        return
    copy = CopyRow(id=new_id("copy"), placement_id=row.id, version_id=release.version_id)
    session.add(copy)
    session.flush()
    log.append(
        session, "copy.sent", copy=copy.id, at=row.id, version=release.version_id, target=row.target
    )


def note_done(session: Session, row: PlacementRow, *, generation: int) -> None:
    """Note that a target holds what it should, as of ``generation``, and nothing else.

    If something else is wanted by now, nothing is noted: that is due, and notes it all.
    """
    if row.generation != generation:
        return
    for version_id, copy in _present(session, row.id).items():
        if version_id == row.version_id:
            if copy.placed_at is None:
                copy.placed_at = func.clock_timestamp()
                log.append(session, "copy.placed", copy=copy.id)
        else:
            _note_removed(session, copy)
    row.checked_at = func.clock_timestamp()
    row.failure = None
    row.attempts = 0
    row.due_at = row.unsettled_since = None


def _note_removed(session: Session, copy: CopyRow) -> None:
    copy.removed_at = func.clock_timestamp()
    log.append(session, "copy.removed", copy=copy.id)


def note_empty(session: Session, row: PlacementRow) -> None:
    """Note that a target holds nothing of a model."""
    for copy in _present(session, row.id).values():
        _note_removed(session, copy)


def note_failed(row: PlacementRow, *, generation: int, failure: str, delay_s: float) -> None:
    """Note why a target could not be brought up to date, and when that is tried again."""
    row.failure = failure
    if row.generation == generation:
        row.attempts += 1
        row.due_at = func.clock_timestamp() + timedelta(seconds=delay_s)


def _present(session: Session, placement_id: str) -> Mapping[str, CopyRow]:
    query = select(CopyRow).where(
        CopyRow.placement_id == placement_id, CopyRow.removed_at.is_(None)
    )
    return {copy.version_id: copy for copy in session.scalars(query)}


def settled(session: Session, *, check_s: float) -> Sequence[tuple[PlacementRow, ModelRow, bool]]:
    """Return the placements for which nothing is due, their models, and whether to look again.

    That is so where something should be, and was not checked for ``check_s``.
    """
    now = func.clock_timestamp()
    # Checked in the future: the clock was set back.
    long_ago = or_(
        PlacementRow.checked_at <= now - timedelta(seconds=check_s), PlacementRow.checked_at > now
    )
    query = (
        select(PlacementRow, ModelRow, PlacementRow.is_wanted & long_ago)
        .join(ModelRow, ModelRow.id == PlacementRow.model_id)
        .where(PlacementRow.due_at.is_(None))
    )
    return [(row, model, again) for row, model, again in session.execute(query)]


def wake_one(session: Session, placement_id: str) -> None:
    """Make one placement due."""
    _wake(session, PlacementRow.id == placement_id)


def not_withdrawn(session: Session) -> Sequence[tuple[str, str, int, datetime]]:
    """Return models, targets, numbers of versions that should be gone there, and since when."""
    is_stale = or_(
        PlacementRow.version_id.is_distinct_from(CopyRow.version_id),
        PlacementRow.is_wanted.is_(False),
        VersionRow.state != "certified",
    )
    since = func.coalesce(VersionRow.retired_at, PlacementRow.unsettled_since)
    query = (
        select(ModelRow.name, PlacementRow.target, VersionRow.number, since)
        .select_from(CopyRow)
        .join(PlacementRow, PlacementRow.id == CopyRow.placement_id)
        .join(ModelRow, ModelRow.id == PlacementRow.model_id)
        .join(VersionRow, VersionRow.id == CopyRow.version_id)
        .where(CopyRow.removed_at.is_(None), is_stale, since.is_not(None))
    )
    return [(name, target, number, at) for name, target, number, at in session.execute(query)]


def unsettled(session: Session) -> Sequence[tuple[str, str, datetime]]:
    """Return models, targets that do not hold what they should, and since when."""
    query = (
        select(ModelRow.name, PlacementRow.target, PlacementRow.unsettled_since)
        .join(ModelRow, ModelRow.id == PlacementRow.model_id)
        .where(PlacementRow.unsettled_since.is_not(None))
    )
    return [(name, target, at) for name, target, at in session.execute(query) if at is not None]

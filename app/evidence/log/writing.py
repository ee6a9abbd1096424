"""The append-only log of every decision.

Entries are canonical JSON, written in the transaction of the facts they record. ``append`` collects
them. Just before the commit they get the digests of the rows that were changed and are inserted,
the tree is extended and, after ``checkpoint_at_commit``, signed. A lock held until the commit
serialises this, so indices have no gaps; it is taken last, which keeps it short and prevents
deadlocks with all other locks.

A row's digest is the SHA-256 of its canonical JSON, which PostgreSQL makes from all columns of a
table but those that it leaves out: moments as seconds since 1970, bytes in hex, the members in the
order and spelling of ``jsonb``. So no row is read by Python.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC
from functools import cache
from typing import Any

from sqlalchemy import Column, DateTime, LargeBinary, TextClause, event, inspect, select, text
from sqlalchemy.orm import Mapper, Session, SessionTransaction

from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import actor, checkpoints, trees
from app.evidence.log.tables import LogEntryRow
from app.runtime.database.engine import Logged
from app.runtime.database.queries import known
from app.runtime.database.wakeups import Signal, wake

_MAX_INDEX = 2**63 - 1
_CHANGED = "expunge.log.changed"
_PENDING = "expunge.log.pending"
_SIGNER = "expunge.log.signer"
_EXAMINERS = "expunge.log.examiners"
_OTHERS = "rows.changed"
"""The kind of an entry that holds the digests of rows that no other entry names."""
_FACTS = 2
"""Where an entry's facts begin: after its kind and its actor."""


@cache
def columns(table: Mapper[Any]) -> dict[str, Column[Any]]:
    """Return the columns of which a row's digest is made, by name."""
    left_out = table.class_.__left_out__
    return {name: column for name, column in table.columns.items() if name not in left_out}


@cache
def digests_query(table: Mapper[Any]) -> str:
    """Return the SQL for the name, ``table/id``, and the digest of every row of a table."""
    (key,) = table.primary_key
    members = ", ".join(f"'{name}', {_json(column)}" for name, column in columns(table).items())
    return (
        f"SELECT '{_name(table)}/' || {key.name} AS row, encode(sha256(convert_to("  # noqa: S608
        f"jsonb_build_object({members})::text, 'UTF8')), 'hex') AS sha256 FROM {_name(table)}"
    )


def changed(session: Session, table: type[Logged], ids: Iterable[str]) -> None:
    """Say which rows a statement has inserted or changed; those of the session are known."""
    session.info.setdefault(_CHANGED, {}).setdefault(inspect(table), set()).update(ids)


def _digests(session: Session) -> dict[str, str]:
    """Return the digests of the rows that the transaction has changed, by name.

    It holds these rows' locks until it ends, so what it reads last is what it commits, and of two
    that change one row the later has the later entry. None was deleted: the service's role may not.
    """
    of: dict[Mapper[Any], set[str]] = session.info.pop(_CHANGED, {})
    if not of:
        return {}
    ids = {_name(table): sorted(ids) for table, ids in of.items()}
    found = session.execute(_changed_ones(frozenset(of)), ids)
    return {row: sha256 for row, sha256 in found.all()}  # noqa: C416 - each is a Row


@cache
def _changed_ones(tables: frozenset[Mapper[Any]]) -> TextClause:
    return text(
        " UNION ALL ".join(
            f"{digests_query(table)} WHERE {table.primary_key[0].name} = ANY(:{_name(table)})"
            for table in tables
        )
    )


def _name(table: Mapper[Any]) -> str:
    return str(table.class_.__tablename__)


def _json(column: Column[Any]) -> str:
    if isinstance(column.type, DateTime):
        return f'extract(epoch FROM "{column.name}")'
    if isinstance(column.type, LargeBinary):
        return f"encode(\"{column.name}\", 'hex')"
    return f'"{column.name}"'


@event.listens_for(Session, "before_flush")  # after it, what SQL computes is not known as changed
def _note(session: Session, _context: object, _instances: object) -> None:
    new = session.new
    for row in (*new, *session.dirty):
        if isinstance(row, Logged):
            state = inspect(row)
            names = columns(state.mapper)
            if row in new or any(state.attrs[name].history.has_changes() for name in names):
                changed(session, type(row), state.mapper.primary_key_from_instance(row))


@event.listens_for(Session, "after_transaction_create")
def _refuse_savepoint(_session: Session, transaction: SessionTransaction) -> None:
    """A part that is rolled back alone would leave entries and digests of what never was."""
    if transaction.nested:
        raise TypeError("a transaction that writes to the log has no savepoints")


def append(session: Session, kind: str, **facts: Any) -> None:  # noqa: ANN401
    """Record one decision when the session's transaction commits.

    ``facts`` contain the service's own ids, counts and digests, never an owner's id; the first is
    the id of what the entry is about. The log adds ``by``, the actor, ``recorded_at``, the
    database's time in UTC, and ``rows``, the digests of rows, by name. The last entry before a
    checkpoint is marked as ``signed`` by it. A caller may give ``rows``, too: digests of sets of
    rows, for ``app/operations/fsck.py``.
    """
    if facts.keys() & {"by", "recorded_at", "signed"}:
        raise TypeError("by, recorded_at and signed are set by the log")
    session.info.setdefault(_PENDING, []).append({"kind": kind, "by": actor.current(), **facts})


def checkpoint_at_commit(session: Session, signer: StatementSigner) -> None:
    """Sign the log when the session's transaction commits, including its own entries."""
    session.info[_SIGNER] = signer


def examine_at_commit(session: Session, examine: Callable[[Session], None]) -> None:
    """Call ``examine`` just before the commit, after the entries were written and signed.

    If it raises, the transaction is rolled back.
    """
    session.info.setdefault(_EXAMINERS, []).append(examine)


def entry(session: Session, index: int) -> LogEntryRow:
    """Return an entry; ``NotFoundError`` if the log is shorter."""
    return known(
        session.get(LogEntryRow, index) if 0 <= index <= _MAX_INDEX else None,
        "log entry",
        str(index),
    )


def entries(session: Session, *, start: int, limit: int) -> Sequence[LogEntryRow]:
    """Return at most ``limit`` entries from index ``start`` on, in order."""
    query = select(LogEntryRow).where(LogEntryRow.index >= start)
    return session.scalars(query.order_by(LogEntryRow.index).limit(limit)).all()


def canonical_json(document: dict[str, Any]) -> str:
    """Return an entry's canonical text, which is hashed: sorted keys, no spaces, ASCII."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


@event.listens_for(Session, "before_commit")
def _write_pending(session: Session) -> None:
    session.flush()
    changed = _digests(session)
    pending = session.info.pop(_PENDING, [])
    if changed:
        _add_digests(pending, changed)
    signer = session.info.pop(_SIGNER, None)
    examiners = session.info.pop(_EXAMINERS, [])
    if not pending and signer is None:
        return
    wake(session, Signal.NEWS)  # before the log is locked: others wait for that
    now, frontier = trees.frontier(session)
    if signer is not None:
        # Mark the last entry as covered by a checkpoint, so that deleting the checkpoint shows.
        if not pending and checkpoints.signed_size(session) < frontier.size:
            pending.append({"kind": "log.signed", "by": actor.current()})
        if pending:
            pending[-1]["signed"] = True
    if pending:
        moment = now.astimezone(UTC).isoformat(timespec="microseconds")
        kinds = [entry["kind"] for entry in pending]
        bodies = [canonical_json({**entry, "recorded_at": moment}) for entry in pending]
        trees.extend(session, frontier, kinds=kinds, bodies=bodies)
    if signer is not None:
        checkpoints.issue(session, signer, frontier)
    for examine in examiners:
        examine(session)


def _add_digests(pending: list[dict[str, Any]], changed: Mapping[str, str]) -> None:
    """Put the digest of each row into the first entry about it, or else that names it."""
    about: dict[str, dict[str, Any]] = {}
    for most in (1, None):
        for entry in pending:
            for fact in list(entry.values())[_FACTS:][:most]:
                if isinstance(fact, str):
                    about.setdefault(fact, entry)
    for row, sha256 in changed.items():
        told = about.get(row.partition("/")[2]) or about.get(_OTHERS)
        if told is None:
            told = about[_OTHERS] = {"kind": _OTHERS, "by": actor.current()}
            pending.append(told)
        told["rows"] = {**told.get("rows", {}), row: sha256}


@event.listens_for(Session, "after_soft_rollback")
def _drop(session: Session, _previous: object) -> None:
    for what in (_CHANGED, _PENDING, _SIGNER, _EXAMINERS):
        session.info.pop(what, None)

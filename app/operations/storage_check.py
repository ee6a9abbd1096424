"""Compares stored objects and keys with the ledger, in both directions.

The service may keep running. A blob's row is created before its object and key and outlives both,
so names are listed before rows are read, and every suspicion is checked again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.domain.errors import CorruptObjectError, GoneError
from app.domain.states import BlobState
from app.operations.schema import all_tables
from app.runtime.database import Database
from app.runtime.database.queries import is_one_of
from app.storage.encryption import stored_size
from app.storage.file_keys import FileKeyStore
from app.storage.objects import ObjectStore
from app.storage.tables import BlobRow


class Verdict(StrEnum):
    """What a finding means."""

    BY_DESIGN = "by design"
    PENDING = "pending"
    UNSEARCHED = "unsearched"
    FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """Something found in a store, or a place that cannot be searched.

    Attributes:
        where: the store and the place in it; never an owner's id.
        meaning: what it is and why it is there.
    """

    verdict: Verdict
    where: str
    meaning: str


_OVERDUE_AFTER = timedelta(hours=1)
_UNKNOWN = "no row of the database names it: left by a restored database, or not ours"


@dataclass(frozen=True)
class Stores:
    """All stores to compare."""

    database: Database
    objects: ObjectStore
    keys: FileKeyStore


@dataclass(frozen=True)
class Counts:
    """How much was compared; ``rows`` counts blobs that were not shredded."""

    objects: int
    keys: int
    rows: int


def check(stores: Stores, *, report: Callable[[Finding], None]) -> Counts:
    """Report every object, key and row that lacks its counterpart.

    Raises:
        ObjectStoreError, KeyStoreError: a store cannot be listed.
    """
    objects, keys = set(stores.objects.names()), set(stores.keys.blob_ids())
    with stores.database.transaction() as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        ledger = _Ledger.read(session, objects | keys)
    comparison = _Comparison(stores, ledger)
    for finding in (
        *comparison.unknown("object", objects),
        *comparison.unknown("key", keys),
        *comparison.survivors(objects, keys),
        *comparison.rows(),
    ):
        report(finding)
    return Counts(objects=len(objects), keys=len(keys), rows=len(ledger.stored))


@dataclass(frozen=True)
class _Ledger:
    """A snapshot of the database.

    Attributes:
        stored: rows of blobs that were not shredded, by id.
        shredded: rows of shredded blobs that left an object or key, by id.
        overdue: ids of pending blobs that a sweep should have given up.
        referred: ids of blobs that some row refers to.
    """

    stored: dict[str, BlobRow]
    shredded: dict[str, BlobRow]
    overdue: set[str]
    referred: set[str]

    @classmethod
    def read(cls, session: Session, names: set[str]) -> "_Ledger":
        stored = session.scalars(select(BlobRow).where(BlobRow.state != BlobState.SHREDDED))
        shredded = session.scalars(
            select(BlobRow).where(
                BlobRow.state == BlobState.SHREDDED,
                is_one_of(BlobRow.id, names),
            )
        )
        overdue = session.scalars(
            select(BlobRow.id).where(
                BlobRow.state == BlobState.PENDING,
                BlobRow.created_at < func.now() - _OVERDUE_AFTER,
            )
        )
        return cls(
            stored={row.id: row for row in stored},
            shredded={row.id: row for row in shredded},
            overdue=set(overdue),
            referred={
                name
                for table in all_tables().tables.values()
                for reference in table.foreign_keys
                if reference.column.table is BlobRow.__table__
                for name in session.scalars(
                    select(reference.parent).where(reference.parent.is_not(None))
                )
            },
        )


@dataclass(frozen=True)
class _Comparison:
    stores: Stores
    ledger: _Ledger

    def unknown(self, what: str, names: set[str]) -> Iterator[Finding]:
        """Yield objects and keys that no row names."""
        for name in sorted(names - self.ledger.stored.keys() - self.ledger.shredded.keys()):
            yield Finding(Verdict.FAULT, f"{what} {name}", _UNKNOWN)

    def survivors(self, objects: set[str], keys: set[str]) -> Iterator[Finding]:
        """Yield objects and keys that should have been deleted with their blob."""
        shredded = self.ledger.shredded
        if not shredded:
            return
        objects = objects & set(self.stores.objects.names())
        keys = keys & set(self.stores.keys.blob_ids())
        for name, row in sorted(shredded.items()):
            if name in keys:
                yield Finding(
                    Verdict.FAULT, f"key {name}", "the blob was shredded, but its key exists"
                )
            if name in objects and row.object_deleted_at is None:
                meaning = "its key was destroyed; its deletion is retried later"
                yield Finding(Verdict.PENDING, f"object {name}", meaning)
            elif name in objects and name not in keys:
                meaning = "it was written too late and cannot be read: deleted within the hour"
                yield Finding(Verdict.PENDING, f"object {name}", meaning)
            elif name in objects:
                yield Finding(Verdict.FAULT, f"object {name}", "it was deleted, but exists again")

    def rows(self) -> Iterator[Finding]:
        """Yield rows that wait for something, and rows without the object or key they need."""
        for name, row in sorted(self.ledger.stored.items()):
            where = f"row {name} ({row.kind}, {row.state})"
            if row.state == BlobState.DOOMED:
                yield Finding(Verdict.PENDING, where, "the next sweep shreds it")
            elif name in self.ledger.overdue:
                meaning = "never adopted, and no sweep gave it up: is a dispatcher running?"
                yield Finding(Verdict.FAULT, where, meaning)
            elif row.state == BlobState.PENDING:
                yield Finding(Verdict.PENDING, where, "it is being written, or will be given up")
            elif faults := list(self._faults(row)):
                with self.stores.database.transaction() as session:
                    is_live = session.get_one(BlobRow, row.id).state == BlobState.LIVE
                if is_live:
                    yield from (Finding(Verdict.FAULT, where, meaning) for meaning in faults)

    def _faults(self, row: BlobRow) -> Iterator[str]:
        if row.id not in self.ledger.referred:
            yield "nothing refers to it"
        if not self.stores.keys.holds(row.id):
            yield "its key is missing: it cannot be read any more"
        try:
            reader = self.stores.objects.open_range(row.id, 0, 1)
        except GoneError:
            yield "its object is missing"
        except CorruptObjectError:
            yield "its object is empty"
        else:
            size, expected = reader.object_size, stored_size(row.size_bytes or 0)
            reader.close()
            if size != expected:
                yield f"its object has {size} bytes, not {expected}"

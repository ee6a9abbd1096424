"""Shreds blobs that were given up: their keys are destroyed, then their objects are deleted."""

import logging
from collections.abc import Callable

from sqlalchemy import ColumnElement, func, select, true, update

from app.domain.errors import KeyStoreError, ObjectStoreError
from app.domain.states import BlobState
from app.runtime.database import Database
from app.runtime.database.queries import is_one_of
from app.runtime.failpoints import reach
from app.storage.file_keys import FileKeyStore
from app.storage.objects import ObjectStore
from app.storage.tables import BlobRow

_DELETIONS_AT_ONCE = 100
_FAILURES_AT_ONCE = 3
_RETRY_AFTER_S = 30.0
_LISTING_INTERVAL_S = 3600.0
_SWEEP_LOCK = 0x73776565
"""Number of a Postgres advisory lock, different from the log's."""
_log = logging.getLogger("expunge.storage")


class Sweeper:
    """Destroys keys and objects. Several sweepers may work at the same time."""

    def __init__(
        self,
        database: Database,
        objects: ObjectStore,
        keys: FileKeyStore,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._objects = objects
        self._keys = keys
        self._clock = clock
        self._next_deletion = self._next_listing = clock()

    def sweep(self, dataset_id: str | None) -> int:
        """Shred all blobs that were given up, or those of one dataset; see ``Blobs.sweep``."""
        shredded, failure = 0, None
        for blob_id in self._doomed(dataset_id):
            reach("before_shred")
            try:
                self._keys.destroy(blob_id)
            except KeyStoreError as error:
                failure = error
                continue
            reach("after_shred")
            with self._database.transaction() as session:
                row = session.get_one(BlobRow, blob_id)
                row.state = BlobState.SHREDDED
                row.sha256 = None
                row.shredded_at = func.now()
            shredded += 1
        if dataset_id is None:
            self._look_for_late_writes()
        self._delete_objects()
        if failure is not None:
            raise failure
        return shredded

    def _doomed(self, dataset_id: str | None) -> list[str]:
        """Return the blobs that were given up and that no transaction is writing."""
        concerned: ColumnElement[bool] = true()
        if dataset_id is not None:
            concerned = BlobRow.dataset_id == dataset_id
        unlocked = (
            select(BlobRow.id)
            .where(BlobRow.state == BlobState.PENDING, BlobRow.run_id.is_(None), concerned)
            .with_for_update(skip_locked=True)
        )
        with self._database.transaction() as session:
            # Another sweep's locks must not be taken for a writer's.
            session.execute(select(func.pg_advisory_xact_lock(_SWEEP_LOCK)))
            abandoned = session.scalars(unlocked).all()
            session.execute(
                update(BlobRow).where(BlobRow.id.in_(abandoned)).values(state=BlobState.DOOMED)
            )
            query = select(BlobRow.id).where(BlobRow.state == BlobState.DOOMED, concerned)
            return list(session.scalars(query))

    def _look_for_late_writes(self) -> None:
        """Once an hour, shred what suspended writers wrote after their blob was shredded.

        They leave an object without a key, or a key without an object.
        """
        if self._clock() < self._next_listing:
            return
        try:
            names = sorted({*self._keys.blob_ids(), *self._objects.names()})
        except ObjectStoreError as error:
            self._next_listing = self._clock() + _RETRY_AFTER_S
            _log.warning("objects cannot be listed: %s", error)
            return
        self._next_listing = self._clock() + _LISTING_INTERVAL_S
        late = (
            update(BlobRow)
            .where(
                is_one_of(BlobRow.id, names),
                BlobRow.object_deleted_at.is_not(None),
            )
            .values(object_deleted_at=None)
            .returning(BlobRow.id)
        )
        with self._database.transaction() as session:
            for blob_id in session.scalars(late).all():
                self._keys.destroy(blob_id)

    def _delete_objects(self) -> None:
        """Delete objects whose keys are destroyed; retry every 30 s while the store fails."""
        if self._clock() < self._next_deletion:
            return
        failures = 0
        for blob_id in self._objects_left():
            try:
                self._objects.delete(blob_id)
            except ObjectStoreError as error:
                failures += 1
                if failures == _FAILURES_AT_ONCE:
                    break
                _log.warning("deletion of an object without a key is delayed: %s", error)
                continue
            with self._database.transaction() as session:
                session.get_one(BlobRow, blob_id).object_deleted_at = func.now()
        if failures:
            self._next_deletion = self._clock() + _RETRY_AFTER_S

    def _objects_left(self) -> list[str]:
        """Return some shredded blobs whose objects still exist, in no fixed order."""
        query = (
            select(BlobRow.id)
            .where(BlobRow.state == BlobState.SHREDDED, BlobRow.object_deleted_at.is_(None))
            .order_by(func.random())
            .limit(_DELETIONS_AT_ONCE)
        )
        with self._database.transaction() as session:
            return list(session.scalars(query))

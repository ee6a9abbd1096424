"""An import leased by this worker."""

from typing import Unpack

from sqlalchemy import Connection

from app.registry.datasets.imports import repository, service
from app.registry.datasets.imports.tables import ImportRow
from app.runtime.database import Database
from workers.leases.holding import Holding, Term


class ImportLease(Holding):
    """One attempt at one import, identified by ``import_id`` and ``fencing_token``."""

    gives_way = True

    def __init__(self, database: Database, row: ImportRow, **term: Unpack[Term]) -> None:
        super().__init__(database, f"import {row.id}", **term)
        self.import_id = row.id
        self.fencing_token = row.fencing_token
        self.dataset_id = row.dataset_id
        self.url = row.url
        self.files = service.files_of(row)
        self.position = service.position_of(row)

    @classmethod
    def take(cls, database: Database, import_id: str, **term: Unpack[Term]) -> "ImportLease | None":
        """Lease an import that waits; None if it does not."""
        with database.transaction() as session:
            row = service.lease(session, import_id, lease_s=term["lease_s"])
            return None if row is None else cls(database, row, **term)

    def _beat(self, connection: Connection) -> None:
        repository.heartbeat(connection, self.import_id, self.fencing_token, lease_s=self._lease_s)

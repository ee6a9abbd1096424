"""An import leased by this worker."""

from sqlalchemy import Connection

from app.database import Database
from app.imports import repository, service
from app.imports.tables import ImportRow
from app.processes.stopping import StopSignal
from workers.leases.holding import Holding


class ImportLease(Holding):
    """One attempt at one import, identified by ``import_id`` and ``fencing_token``."""

    def __init__(
        self, database: Database, row: ImportRow, *, lease_s: float, stop: StopSignal
    ) -> None:
        super().__init__(database, f"import {row.id}", lease_s=lease_s, stop=stop)
        self.import_id = row.id
        self.fencing_token = row.fencing_token
        self.dataset_id = row.dataset_id
        self.url = row.url
        self.files = service.files_of(row)
        self.position = service.position_of(row)

    @classmethod
    def take(
        cls, database: Database, import_id: str, *, lease_s: float, stop: StopSignal
    ) -> "ImportLease | None":
        """Lease an import that waits; None if it does not."""
        with database.transaction() as session:
            row = service.lease(session, import_id, lease_s=lease_s)
            return None if row is None else cls(database, row, lease_s=lease_s, stop=stop)

    def _beat(self, connection: Connection) -> None:
        repository.heartbeat(connection, self.import_id, self.fencing_token, lease_s=self._lease_s)

"""A run leased by this worker, with its progress."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from app.database import Database
from app.domain.states import Phase, RunKind
from app.ledger import runs
from app.ledger.reports import with_report
from app.ledger.tables import RunRow
from app.processes.stopping import StopSignal
from workers.leases.holding import Holding


class Lease(Holding):
    """One attempt at one run, identified by ``run_id`` and ``fencing_token``."""

    def __init__(
        self, database: Database, row: RunRow, *, lease_s: float, stop: StopSignal
    ) -> None:
        super().__init__(database, f"run {row.id}", lease_s=lease_s, stop=stop)
        self.run_id = row.id
        self.fencing_token = row.fencing_token
        self.kind = RunKind(row.kind)
        self.model_id = row.model_id
        self.plan: Mapping[str, Any] = row.plan
        self.phase_seconds: dict[str, float] = {}
        self._progress: dict[str, object] = {}
        self._points: list[Mapping[str, Any]] = []

    @classmethod
    def take(
        cls, database: Database, run_id: str, *, lease_s: float, stop: StopSignal
    ) -> "Lease | None":
        """Lease the most urgent queued run; None if none is waiting."""
        with database.transaction() as session:
            row = runs.lease(session, run_id, lease_s=lease_s)
            return None if row is None else cls(database, row, lease_s=lease_s, stop=stop)

    @classmethod
    def shared(
        cls,
        database: Database,
        run_id: str,
        fencing_token: int,
        *,
        lease_s: float,
        stop: StopSignal,
    ) -> "Lease":
        """Return a run's lease in another process of its worker.

        Raises:
            LeaseLostError: another worker holds the run, or it is over.
        """
        with database.transaction() as session:
            row = runs.holder(session, run_id, fencing_token)
            return cls(database, row, lease_s=lease_s, stop=stop)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Report a phase and measure its duration."""
        self.report(phase=phase, step=None, total_steps=None, loss=None)
        started = time.monotonic()
        try:
            yield
        finally:
            self.phase_seconds[phase] = round(time.monotonic() - started, 3)

    def report(self, **progress: object) -> None:
        """Record progress, to be written soon; raises what ``check`` raises."""
        self.check()
        self._progress = {**self._progress, **progress}
        if progress.get("step") is not None:
            self._points = with_report(self._points, self._progress)
        self._changed = True

    def _beat(self, connection: Connection) -> None:
        runs.heartbeat(
            connection,
            self.run_id,
            self.fencing_token,
            lease_s=self._lease_s,
            progress=self._progress | {"reports": self._points},
        )

"""A run leased by this worker, with its progress."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Unpack

from sqlalchemy import Connection

from app.domain.states import Phase, RunKind
from app.ledger import repository, runs
from app.ledger.runs import with_report
from app.ledger.tables import RunRow
from app.runtime.database import Database
from app.runtime.spans import Span
from workers.leases import traces
from workers.leases.holding import Holding, Term


class Lease(Holding):
    """One attempt at one run, identified by ``run_id`` and ``fencing_token``.

    A ``shared`` one is held by another process as well, which ends the attempt.
    """

    def __init__(
        self, database: Database, row: RunRow, *, shared: bool = False, **term: Unpack[Term]
    ) -> None:
        super().__init__(database, f"run {row.id}", **term)
        self.run_id = row.id
        self.fencing_token = row.fencing_token
        self.kind = RunKind(row.kind)
        self.model_id = row.model_id
        self.plan: Mapping[str, Any] = row.plan
        self.phase_seconds: dict[str, float] = {}
        self._shared = shared
        self._phases: list[tuple[Phase, int, int, str | None]] = []
        self._progress: dict[str, object] = {}
        self._points: list[Mapping[str, Any]] = []

    @classmethod
    def take(cls, database: Database, run_id: str, **term: Unpack[Term]) -> "Lease | None":
        """Lease the most urgent queued run; None if none is waiting."""
        with database.transaction() as session:
            row = runs.lease(session, run_id, lease_s=term["lease_s"])
            return None if row is None else cls(database, row, **term)

    @classmethod
    def shared(
        cls, database: Database, run_id: str, fencing_token: int, **term: Unpack[Term]
    ) -> "Lease":
        """Return a run's lease in another process of its worker.

        Raises:
            LeaseLostError: another worker holds the run, or it is over.
        """
        with database.transaction() as session:
            row = runs.holder(session, run_id, fencing_token)
            return cls(database, row, shared=True, **term)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Report a phase and measure its duration."""
        self.report(phase=phase, step=None, total_steps=None, loss=None)
        begun_ns, started, error = time.time_ns(), time.monotonic(), None
        try:
            yield
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            self.phase_seconds[phase] = round(time.monotonic() - started, 3)
            self._phases.append((phase, begun_ns, time.time_ns(), error))

    def report(self, **progress: object) -> None:
        """Record progress, to be written soon; raises what ``check`` raises."""
        self.check()
        self._progress = {**self._progress, **progress}
        if progress.get("step") is not None:
            self._points = with_report(self._points, self._progress)
        self._changed = True

    def _spans(self, error: str | None) -> Iterator[Span]:
        with self._database.transaction() as session:
            run, token = repository.run(session, self.run_id), self.fencing_token
            work = traces.attempt_at(session, run, token)
            for number, (phase, begun_ns, ended_ns, failed) in enumerate(self._phases):
                yield work.part(phase, number, begun_ns=begun_ns, ended_ns=ended_ns, error=failed)
            if not self._shared:
                yield from traces.spans_of_attempt(
                    session, run, token, begun_ns=self._begun_ns, error=error
                )

    def _beat(self, connection: Connection) -> None:
        runs.heartbeat(
            connection,
            self.run_id,
            self.fencing_token,
            lease_s=self._lease_s,
            # Who waits for the processes of a run has nothing to report, and takes nothing back.
            progress=self._progress | ({"reports": self._points} if self._points else {}),
        )

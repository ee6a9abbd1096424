"""A run leased by this worker: a thread sends its heartbeat and progress.

The thread writes to Postgres at most a few times a second; the work never waits for it. During an
outage of Postgres it keeps trying: the lease is lost only when Postgres says so.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from sqlalchemy.exc import SQLAlchemyError

from app.database import Database
from app.domain.errors import LeaseLostError, RunInterruptedError
from app.domain.states import Phase, RunKind
from app.ledger import runs
from app.ledger.tables import RunRow
from app.logs import describe
from app.processes.stopping import StopSignal

_log = logging.getLogger("expunge.lease")
_REPORT_INTERVAL_S = 0.25


class Lease:
    """One attempt at one run, identified by ``run_id`` and ``fencing_token``."""

    def __init__(
        self, database: Database, row: RunRow, *, lease_s: float, stop: StopSignal
    ) -> None:
        self.run_id = row.id
        self.fencing_token = row.fencing_token
        self.kind = RunKind(row.kind)
        self.model_id = row.model_id
        self.plan: Mapping[str, Any] = row.plan
        self.phase_seconds: dict[str, float] = {}
        self._database = database
        self._lease_s = lease_s
        self._stop_signal = stop
        self._progress: dict[str, object] = {}
        self._changed = False
        self._lost = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="lease", daemon=True)

    @classmethod
    def take(
        cls, database: Database, run_id: str, *, lease_s: float, stop: StopSignal
    ) -> "Lease | None":
        """Lease the most urgent queued run; None if none is waiting."""
        with database.transaction() as session:
            row = runs.lease(session, run_id, lease_s=lease_s)
            return None if row is None else cls(database, row, lease_s=lease_s, stop=stop)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

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
        self._changed = True

    def check(self) -> None:
        """Check whether the work may continue; cheap.

        Raises:
            LeaseLostError: another worker holds the run; stop and leave no trace.
            RunInterruptedError: this worker was asked to stop.
        """
        if self._lost.is_set():
            raise LeaseLostError("the run is held by another worker or is over")
        self.check_stop()

    def check_stop(self) -> None:
        """Check only whether this worker may continue, or raise ``RunInterruptedError``."""
        if self._stop_signal.is_set():
            raise RunInterruptedError("the worker was asked to stop")

    def _keep_alive(self) -> None:
        beat_s = self._lease_s / 3
        last = time.monotonic()
        failing = False
        while not self._stop.wait(_REPORT_INTERVAL_S):
            if not self._changed and time.monotonic() - last < beat_s:
                continue
            self._changed = False
            try:
                # In one statement: a process that freezes here must not block others from its run.
                with self._database.at_once() as connection:
                    runs.heartbeat(
                        connection,
                        self.run_id,
                        self.fencing_token,
                        lease_s=self._lease_s,
                        progress=self._progress,
                    )
            except LeaseLostError:
                self._lost.set()
                return
            except SQLAlchemyError as error:
                self._changed = True
                if not failing:
                    _log.warning("run %s: heartbeat failed: %s", self.run_id, describe(error))
                failing = True
            else:
                failing = False
                last = time.monotonic()

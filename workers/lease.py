"""A run, held by this worker: kept alive and reported on from a thread of its own.

The thread writes to Postgres a few times a second at most; the work never waits for it. While
Postgres is away the thread keeps trying: the lease is lost only when Postgres says so.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from sqlalchemy.exc import OperationalError

from app.database import Database
from app.domain.errors import LeaseLostError
from app.domain.states import Phase, RunKind
from app.ledger import runs

_REPORT_INTERVAL_S = 0.25


class Lease:
    """One attempt at one run.

    Attributes:
        run_id, fencing_token: together they name the attempt.
        kind: what the run does.
        model_id: on which model.
        plan: the plan as stored.
    """

    def __init__(
        self,
        database: Database,
        *,
        run_id: str,
        fencing_token: int,
        kind: RunKind,
        model_id: str,
        plan: Mapping[str, Any],
        lease_s: float,
    ) -> None:
        self.run_id = run_id
        self.fencing_token = fencing_token
        self.kind = kind
        self.model_id = model_id
        self.plan = plan
        self.phase_seconds: dict[str, float] = {}
        self._database = database
        self._lease_s = lease_s
        self._progress: dict[str, object] = {}
        self._changed = False
        self._lost = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="lease", daemon=True)

    @classmethod
    def take(cls, database: Database, run_id: str, *, lease_s: float) -> "Lease | None":
        """Lease a queued run; None if someone else has it or it is over."""
        with database.transaction() as session:
            row = runs.lease(session, run_id, lease_s=lease_s)
            if row is None:
                return None
            return cls(
                database,
                run_id=row.id,
                fencing_token=row.fencing_token,
                kind=RunKind(row.kind),
                model_id=row.model_id,
                plan=row.plan,
                lease_s=lease_s,
            )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Report that a phase is going and measure how long it takes."""
        self.report(phase=phase, step=None, total_steps=None, loss=None)
        started = time.monotonic()
        try:
            yield
        finally:
            self.phase_seconds[phase] = round(time.monotonic() - started, 3)

    def report(self, **progress: object) -> None:
        """Note progress, to be written soon.

        Raises:
            LeaseLostError: another worker holds the run; stop without a trace.
        """
        self.check()
        self._progress = {**self._progress, **progress}
        self._changed = True

    def check(self) -> None:
        """Raise ``LeaseLostError`` if the lease was lost."""
        if self._lost.is_set():
            raise LeaseLostError("the run is held by another worker or is over")

    def _keep_alive(self) -> None:
        beat_s = self._lease_s / 3
        last = time.monotonic()
        while not self._stop.wait(_REPORT_INTERVAL_S):
            if not self._changed and time.monotonic() - last < beat_s:
                continue
            self._changed = False
            try:
                with self._database.transaction() as session:
                    runs.heartbeat(
                        session,
                        self.run_id,
                        self.fencing_token,
                        lease_s=self._lease_s,
                        progress=self._progress,
                    )
                last = time.monotonic()
            except LeaseLostError:
                self._lost.set()
                return
            except OperationalError:
                self._changed = True

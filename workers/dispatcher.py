"""The dispatcher: moves work from the outbox to the queue, and recovers lost runs.

Several dispatchers may run. Each step is a set of short transactions on Postgres, which holds the
state; Redis only passes ids to workers, and steps that do not need Redis do not wait for it.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial, wraps

from rq import Queue
from sqlalchemy import func

from app.domain.ids import new_id
from app.ledger import member_trainings, outbox, repository, runs, scheduling
from app.ledger.models.retraining import AutomaticRetraining
from app.ledger.tables import MemberTrainingRow, RunRow
from app.operations.monitoring.queue_state import DISPATCHER_INTERVAL_S, note_dispatcher
from app.registry.datasets.imports import repository as imports
from app.registry.datasets.imports import service as importing
from app.registry.datasets.tables import ImportRow
from app.runtime.database import leases
from app.runtime.database.wakeups import Signal, WakeUps
from app.runtime.locations import redis_connection
from app.runtime.logs import describe
from app.runtime.processes.stopping import StopSignal
from app.runtime.settings import Settings
from app.runtime.spans import at_commit
from app.services import Services, open_services
from workers.leases import traces
from workers.queue import (
    enqueue_import,
    enqueue_members,
    enqueue_run,
    open_queue,
    waiting_runs,
)

_log = logging.getLogger("expunge.dispatcher")
_REENQUEUE_AFTER = timedelta(seconds=5)
_POLL_INTERVAL_S = 0.25
_PLANS_AT_ONCE = 4
_OUTAGE_DELAY_S = 1.0
_UPKEEP_INTERVAL_S = 1.0
_DEADLINES_INTERVAL_S = 5.0
_RETRAINING_INTERVAL_S = 5.0


class Dispatcher:
    """Turns obligations into runs, enqueues runs, and requeues the runs of silent workers.

    All steps are independent of each other and safe to repeat.

    Attributes:
        steps: what a caller waits for, taken at each poll.
        woken: what else is taken at once when another process gives a signal for it.
        upkeep: what can wait a second.
    """

    def __init__(self, services: Services, queue: Queue) -> None:
        self._services = services
        self._queue = queue
        self._name = new_id("dispatcher")
        self._planning = ThreadPoolExecutor(_PLANS_AT_ONCE, thread_name_prefix="planning")
        self._plans: dict[str, Future[RunRow | None]] = {}
        retraining = AutomaticRetraining(services.database)
        self.steps: tuple[Callable[[], None], ...] = (
            self._leave_out,
            self._schedule_models,
            self._enqueue_runs,
            self._enqueue_members,
            self._enqueue_imports,
        )
        self.woken = {Signal.ERASABLE: services.clean_up}
        self.upkeep: tuple[Callable[[], None], ...] = (
            self._requeue_silent_runs,
            self._reenqueue_lost_jobs,
            self._requeue_silent_imports,
            _every(_DEADLINES_INTERVAL_S, services.note_deadlines),
            _every(_DEADLINES_INTERVAL_S, services.destroy_evidence),
            _every(_RETRAINING_INTERVAL_S, retraining.retrain_due),
            _every(_RETRAINING_INTERVAL_S, retraining.refill_due),
            services.clean_up,
            services.forget_answers,
            services.rotate_keys,
            services.checkpoint_log,
            _every(DISPATCHER_INTERVAL_S, self._give_sign_of_life),
        )

    def tick(self) -> None:
        """Take every due step now, and wait for the plans."""
        for step in (*self.steps, *self.upkeep):
            step()
            wait(self._plans.values())

    def dispatch(self, stop: StopSignal, *, pause_s: float = _POLL_INTERVAL_S) -> None:
        """Take every step once in ``pause_s``, and at once when woken, until asked to stop.

        Failures are retried.
        """
        upkeep = [_every(_UPKEEP_INTERVAL_S, step) for step in self.upkeep]
        wake_ups = WakeUps(self._services.database, Signal.DUE, *self.woken)
        failing: set[str] = set()
        while not stop.wait(_OUTAGE_DELAY_S if failing else 0.0):
            woken = [self.woken[each] for each in wake_ups.wait(pause_s) & self.woken.keys()]
            for step in (*self.steps, *woken, *upkeep):
                name = step.__name__.strip("_")
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - the other steps must go on
                    if name not in failing:
                        _log.warning("%s is delayed: %s", name, describe(error))
                    failing.add(name)
                else:
                    failing.discard(name)
        wake_ups.close()

    def close(self) -> None:
        """Begin no further plan, and wait for those that are being made."""
        self._planning.shutdown(cancel_futures=True)

    def _leave_out(self) -> None:
        """Meet what ensembles owe that are refilled: every worker may be busy with that."""
        with self._services.database.transaction() as session:
            refilled = repository.models_refilled(session)
        if refilled:
            self._services.leave_out_at_once(dict.fromkeys(refilled))

    def _schedule_models(self) -> None:
        """Plan the due models side by side.

        A plan that takes long goes on beside the steps that follow, and holds up no other model.
        """
        database, plans = self._services.database, self._plans
        for model_id in scheduling.due_models(database):
            if model_id not in plans:
                planned = self._planning.submit(scheduling.schedule_model, database, model_id)
                plans[model_id] = planned
        wait(plans.values(), timeout=_POLL_INTERVAL_S)
        ended = [plans.pop(model_id) for model_id in list(plans) if plans[model_id].done()]
        for planned in ended:
            planned.result()

    def _requeue_silent_runs(self) -> None:
        """Give up the attempts whose workers are silent.

        Each has its own transaction: models are locked after one run, and before any request.
        """
        database, settings = self._services.database, self._services.settings
        with database.transaction() as session:
            leases.shorten(session, RunRow, MemberTrainingRow, ImportRow, lease_s=settings.lease_s)
        while True:
            with database.transaction() as session:
                row = repository.expired_run(session, lease_s=settings.lease_s)
                if row is None:
                    return
                at_commit(session, partial(traces.spans_of_silent, session, row))
                runs.give_up_attempt(
                    session,
                    row,
                    reason=f"the worker died {row.attempt} times, the last time in phase "
                    f"{row.phase}: it may lack memory for this model",
                    permanent=False,
                    max_attempts=settings.max_attempts,
                )

    def _enqueue_runs(self) -> None:
        """Enqueue new runs; if Redis is down the transaction rolls back and they wait."""
        with self._services.database.transaction() as session:
            for row in outbox.due(session, outbox.Topic.ENQUEUE_RUN):
                enqueue_run(self._queue, row.subject_id)
                run = repository.run(session, row.subject_id)
                at_commit(session, partial(traces.spans_of_enqueued, session, run, row))
                run.enqueued_at = func.clock_timestamp()
                session.delete(row)

    def _enqueue_members(self) -> None:
        """Ask for one worker for each member that waits; what Redis loses is not asked for again.

        The run's own worker trains whatever no other one does.
        """
        with self._services.database.transaction() as session:
            for row in outbox.due(session, outbox.Topic.ENQUEUE_MEMBERS):
                for _ in range(member_trainings.waiting(session, row.subject_id)):
                    enqueue_members(self._queue, row.subject_id)
                session.delete(row)

    def _reenqueue_lost_jobs(self) -> None:
        with self._services.database.transaction() as session:
            stale = repository.queued_runs(session, enqueued_before=_REENQUEUE_AFTER)
            if not stale:
                return
            waiting = waiting_runs(self._queue)
            for row in stale:
                if row.id not in waiting:
                    enqueue_run(self._queue, row.id)
                row.enqueued_at = func.clock_timestamp()

    def _requeue_silent_imports(self) -> None:
        """Give up the attempts at imports whose workers are silent, each in its transaction."""
        settings = self._services.settings
        again = True
        while again:
            with self._services.database.transaction() as session:
                again = importing.requeue_silent(session, max_attempts=settings.max_attempts)

    def _enqueue_imports(self) -> None:
        """Enqueue every import that waits, once for each of its attempts."""
        with self._services.database.transaction() as session:
            waiting = [(row.id, str(row.fencing_token)) for row in imports.queued(session)]
        for import_id, attempt in waiting:
            enqueue_import(self._queue, import_id, attempt)

    def _give_sign_of_life(self) -> None:
        note_dispatcher(self._queue.connection, self._name)


def _every(interval_s: float, step: Callable[[], object]) -> Callable[[], None]:
    """Return a step that is taken once in so many seconds; again at once if it fails."""
    due = time.monotonic()

    @wraps(step)
    def taken() -> None:
        nonlocal due
        if time.monotonic() >= due:
            step()
            due = time.monotonic() + interval_s

    return taken


def main() -> None:
    """Dispatch, deliver callbacks, publish and ask witnesses, until SIGTERM or SIGINT."""
    stop = StopSignal().listen()
    settings = Settings()
    services = open_services(settings, process="dispatcher")
    dispatcher = Dispatcher(services, open_queue(redis_connection(settings)))
    deliverer = services.deliverer()
    collectors = services.cosignature_collectors()
    publisher = services.publisher()
    deliverer.start()
    publisher.start()
    for collector in collectors:
        collector.start()
    dispatcher.dispatch(stop)
    deliverer.stop()
    publisher.stop()
    for collector in collectors:
        collector.stop()
    dispatcher.close()
    services.close()

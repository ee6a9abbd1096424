"""The dispatcher: from the outbox to the queue, and back onto the rails.

Any number of dispatchers may run. Each tick is a set of short transactions on Postgres, which is
the truth; Redis only carries ids to workers.
"""

import logging
import signal
import threading
from datetime import timedelta

from redis import RedisError
from rq import Queue
from sqlalchemy import func
from sqlalchemy.exc import DBAPIError

from app.ledger import outbox, repository, runs
from app.services import Services, open_services, redis_connection
from app.settings import Settings
from workers.queue import enqueue_run, open_queue, waiting_runs

_log = logging.getLogger("expunge.dispatcher")
_REENQUEUE_AFTER = timedelta(seconds=5)


class Dispatcher:
    """Turns obligations into runs, runs into jobs, and silent workers' runs into queued ones."""

    def __init__(self, services: Services, queue: Queue) -> None:
        self._services = services
        self._queue = queue

    def tick(self) -> None:
        """Do all that is due now."""
        self._schedule_models()
        self._enqueue_runs()
        self._requeue_silent_runs()
        self._reenqueue_lost_jobs()
        self._services.clean_up()

    def _schedule_models(self) -> None:
        """Turn the due obligations of each model into one run."""
        with self._services.database.transaction() as session:
            due = outbox.due(session, outbox.Topic.SCHEDULE_MODEL)
            for model_id in sorted({row.subject_id for row in due}):
                runs.schedule_model(session, model_id)
            for row in due:
                session.delete(row)

    def _enqueue_runs(self) -> None:
        """Hand new runs to the queue; if Redis is away the transaction rolls back and waits."""
        with self._services.database.transaction() as session:
            for row in outbox.due(session, outbox.Topic.ENQUEUE_RUN):
                enqueue_run(self._queue, row.subject_id)
                repository.run(session, row.subject_id).enqueued_at = func.clock_timestamp()
                session.delete(row)

    def _requeue_silent_runs(self) -> None:
        """Give the runs of workers that went silent to others."""
        with self._services.database.transaction() as session:
            for row in repository.expired_runs(session):
                runs.give_up_attempt(
                    session,
                    row,
                    reason=f"the worker died {row.attempt} times in phase {row.phase}: "
                    "it may lack memory for this model",
                    permanent=False,
                    max_attempts=self._services.settings.max_attempts,
                )

    def _reenqueue_lost_jobs(self) -> None:
        """Enqueue again what Redis has forgotten."""
        with self._services.database.transaction() as session:
            stale = repository.queued_runs(session, enqueued_before=_REENQUEUE_AFTER)
            if not stale:
                return
            waiting = waiting_runs(self._queue)
            for row in stale:
                if row.id not in waiting:
                    enqueue_run(self._queue, row.id)
                row.enqueued_at = func.clock_timestamp()


def main() -> None:
    """Dispatch until SIGTERM or SIGINT; outages of Postgres and Redis are waited out."""
    settings = Settings()
    services = open_services(settings)
    dispatcher = Dispatcher(services, open_queue(redis_connection(settings)))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    while not stop.wait(settings.poll_interval_s):
        try:
            dispatcher.tick()
        except (DBAPIError, RedisError) as error:
            _log.warning("waiting for a server: %s", type(error).__name__)
            stop.wait(1.0)
    services.database.dispose()

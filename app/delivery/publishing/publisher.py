"""Brings targets to what they should hold, in the background of a process.

Several processes may do so. What is wanted is in Postgres, noted in the transaction that changed
it. Who works at a placement holds an advisory lock of Postgres, in a transaction of its own, while
it does; if the process dies, the lock goes with the connection, and another process begins anew. A
process that stands still keeps the lock, so none can finish late and bring back what was removed.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.delivery.publishing import repository
from app.delivery.publishing.target import Subject, Target
from app.domain.errors import ExpungeError, PlaceTakenError, TargetError, UnmarkedPlaceError
from app.domain.release import Release
from app.evidence.log import actor
from app.registry.tables import ModelRow
from app.runtime.database import Database
from app.runtime.failpoints import reach
from app.runtime.logs import describe
from app.runtime.processes.stopping import Repeated
from app.runtime.spans import Facts, Step, Work, at_commit, is_on

_CLASS = 0x7075626C
"""These locks have two numbers; the other locks of the service have one."""
_TAKE = text("SELECT pg_try_advisory_xact_lock(CAST(:class AS integer), hashtext(:id))")
_NO_LIMIT = text("SET LOCAL idle_in_transaction_session_timeout = 0")


@contextmanager
def alone(database: Database, placement_id: str) -> Iterator[Connection | None]:
    """Hold a placement's lock, in the connection's transaction; None if another one holds it."""
    with database.engine.connect() as connection:
        connection.execute(_NO_LIMIT)
        taken = connection.execute(_TAKE, {"class": _CLASS, "id": placement_id}).scalar_one()
        yield connection if taken else None


ReleaseOf = Callable[[Session, ModelRow], Release | None]
"""Returns what is served of a model now."""
ServedOf = Callable[[Session, ModelRow], tuple[str | None, str | None]]
"""Returns the ids of the version that is served now, and of its certificate."""
AnsweredBy = Callable[[Session, str], Sequence[str]]
"""Returns the forget requests that a version was made for."""

_log = logging.getLogger("expunge.publishing")
_CAPACITY = 8
_PER_TARGET = 2
_OUTAGE_DELAY_S = 1.0
_SWEEP_INTERVAL_S = 2.0
_STOP_S = 5.0
_random = random.SystemRandom()


class _ChangedError(Exception):
    """Something else is wanted meanwhile."""


@dataclass(frozen=True)
class Terms:
    """How often to look for work, and how often to check what is there."""

    poll_interval_s: float = 0.25
    check_s: float = 3600.0


class Publisher:
    """Works at due placements, each in its own thread; a slow target delays only itself."""

    def __init__(
        self,
        database: Database,
        targets: Mapping[str, Target],
        release_of: ReleaseOf,
        served_of: ServedOf,
        answered_by: AnsweredBy,
        terms: Terms,
    ) -> None:
        self._database = database
        self._targets = targets
        self._release_of = release_of
        self._served_of = served_of
        self._answered_by = answered_by
        self._terms = terms
        self._going: dict[str, tuple[str, threading.Thread]] = {}
        self._lock = threading.Lock()
        self._next_sweep = time.monotonic() + _SWEEP_INTERVAL_S
        self._rounds = Repeated(
            "publishing",
            self._round,
            pause_s=terms.poll_interval_s,
            on_failure=lambda error: _log.warning("publishing is delayed: %s", describe(error)),
        )

    def start(self) -> None:
        """Publish in the background until ``stop``."""
        self._rounds.start()

    def stop(self) -> None:
        """Begin nothing more; what is going gets a few seconds, and is else repeated."""
        self._rounds.stop(_STOP_S)
        with self._lock:
            going = [thread for _, thread in self._going.values()]
        for thread in going:
            thread.join(_STOP_S / len(going))

    def tick(self) -> int:
        """Begin to work at due placements; return at how many."""
        with self._database.transaction() as session:
            due = repository.due(session, limit=100)
        begun = 0
        for placement_id, target in due:
            with self._lock:
                busy = Counter(each for each, _ in self._going.values())
                full = len(self._going) >= _CAPACITY or busy[target] >= _PER_TARGET
                if full or placement_id in self._going or self._rounds.stopping.is_set():
                    continue
                thread = threading.Thread(
                    target=self._settle_and_leave, args=(placement_id,), name="place", daemon=True
                )
                thread.start()  # where it cannot be, it must not count as going
                self._going[placement_id] = (target, thread)
            begun += 1
        return begun

    def sweep(self) -> None:
        """Make due what holds another version than is served, or was not checked for long.

        Publishing and withdrawing make it due by themselves; this finds what follows from policies
        and from certificates that need no run.
        """
        with self._database.transaction() as session:
            outdated = [
                row.id
                for row, model, again in repository.settled(session, check_s=self._terms.check_s)
                if again
                or (row.version_id, row.certificate_id)
                != (self._served_of(session, model) if row.is_wanted else (None, None))
            ]
        for placement_id in outdated:
            with self._database.transaction() as session:
                repository.wake_one(session, placement_id)

    def settle(self, placement_id: str) -> bool:
        """Bring one target to what it should hold; False if another process is about to."""
        with alone(self._database, placement_id) as connection:
            if connection is not None:
                self._settle(connection, placement_id)
            return connection is not None

    def _settle(self, connection: Connection, placement_id: str) -> None:
        begun_ns = time.time_ns()
        requests: Sequence[str] = ()
        with actor.acting_as(actor.SERVICE), self._database.transaction() as session:
            row = repository.locked(session, placement_id)
            if row.due_at is None:
                return
            model = session.get_one(ModelRow, row.model_id)
            generation, attempts, target_name = row.generation, row.attempts, row.target
            release = self._release_of(session, model) if row.is_wanted else None
            was_sent = bool(repository.numbers_present(session, row.id))
            is_new = repository.note_begun(session, row, release)
            if is_on() and release is not None and is_new:
                requests = self._answered_by(session, release.version_id)
            subject = Subject(model.id, model.name)

        facts = Facts(model=subject.name, target=target_name, attempt=attempts + 1)
        work = Work(("publish", placement_id, generation, attempts), requests)
        spans = partial(work.spans, Step.PUBLISH, begun_ns=begun_ns, facts=facts)

        def step(name: str) -> None:
            if name == "noted" and release is not None:
                with self._database.transaction() as session:
                    row = repository.locked(session, placement_id)
                    repository.note_sent(session, row, release, generation=generation)
            reach(f"publishing_{name}")
            self._require_current(connection, placement_id, generation)

        try:
            self._hold(target_name, subject, release, step, was_sent=was_sent)
        except _ChangedError:
            return  # it is due
        except (ExpungeError, SQLAlchemyError) as error:
            failure = (
                str(error)
                if isinstance(error, ExpungeError)
                else "the database did not answer meanwhile"
            )
            _log.warning("%s of model %s: %s", target_name, subject.name, failure)
            with actor.acting_as(actor.SERVICE), self._database.transaction() as session:
                if requests:
                    at_commit(session, partial(spans, error=type(error).__name__))
                row = repository.locked(session, placement_id)
                if isinstance(error, PlaceTakenError):
                    self._require_current(connection, placement_id, generation)
                    repository.note_empty(session, row)
                # From one second on twice as long each time, to minutes.
                delay_s = min(repository.LONGEST_DELAY_S, 2.0 ** min(attempts, 30))
                delay_s *= _random.uniform(1.0, 1.2)
                repository.note_failed(row, generation=generation, failure=failure, delay_s=delay_s)
            return
        reach("publishing_held")
        with actor.acting_as(actor.SERVICE), self._database.transaction() as session:
            # Another process may work there since the lock's connection broke.
            self._require_current(connection, placement_id, generation)
            row = repository.locked(session, placement_id)
            repository.note_done(session, row, generation=generation)
            if requests:
                at_commit(session, spans)

    def _hold(
        self,
        target: str,
        subject: Subject,
        release: Release | None,
        step: Callable[[str], None],
        *,
        was_sent: bool,
    ) -> None:
        """Have a target hold a release; it holds nothing of a model that it never got."""
        if target not in self._targets:
            raise TargetError("EXPUNGE_PUBLISHERS does not name this target any more")
        try:
            with actor.acting_as(actor.SERVICE):
                self._targets[target].hold(subject, release, step)
        except UnmarkedPlaceError:
            if was_sent or release is not None:
                raise

    def _require_current(self, connection: Connection, placement_id: str, generation: int) -> None:
        """Raise if the lock is lost with its connection, or something else is wanted."""
        found = repository.generation(connection, placement_id)
        if found != generation:
            raise _ChangedError

    def _settle_and_leave(self, placement_id: str) -> None:
        try:
            self.settle(placement_id)
        except _ChangedError:
            pass
        except Exception as error:  # noqa: BLE001 - it is still due
            _log.warning("publishing is delayed: %s", describe(error))
            self._rounds.stopping.wait(_OUTAGE_DELAY_S)
        finally:
            with self._lock:
                self._going.pop(placement_id, None)

    def _round(self) -> None:
        self.tick()
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_INTERVAL_S
            self.sweep()

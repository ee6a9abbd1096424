"""Leases over a real database: workers fall silent, lose their run, or are told to stop."""

import json
import threading
import time
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from app.domain.errors import LeaseLostError, RunInterruptedError
from app.domain.states import Phase
from app.ledger import repository, runs
from app.runtime.processes.stopping import StopSignal
from tests.support.patience import PATIENCE_S, until
from workers.leases import holding
from workers.leases.lease import Lease

LEASE_S = 0.6


@pytest.fixture
def workshop(workshop):
    workshop.define()
    return workshop


@pytest.fixture
def stop():
    return StopSignal()


@pytest.fixture
def lease(workshop, stop):
    database = workshop.services.database
    return Lease.take(database, workshop.active_run(), lease_s=LEASE_S, stop=stop)


def expired(workshop):
    with workshop.transaction() as session:
        run = repository.expired_run(session, lease_s=0.0)
        return [] if run is None else [run.id]


def test_a_run_is_leased_once(workshop, lease, stop):
    again = Lease.take(workshop.services.database, lease.run_id, lease_s=LEASE_S, stop=stop)
    assert again is None
    assert (lease.kind, lease.fencing_token) == ("train", 1)


def test_a_run_is_kept_whenever_a_third_of_its_lease_is_over(workshop, stop, monkeypatch):
    """By a clock that moves when the test says so."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time_ns=time.time_ns)
    monkeypatch.setattr(holding, "time", clock)
    run_id, lease_s = workshop.active_run(), 60.0
    lease = Lease.take(workshop.services.database, run_id, lease_s=lease_s, stop=stop)
    with lease:
        for _ in range(4):
            before = workshop.run(run_id).lease_expires_at
            now[0] += lease_s / 3
            until(lambda before=before: workshop.run(run_id).lease_expires_at > before)
        lease.check()


def test_a_run_is_lost_when_its_worker_falls_silent(workshop, lease):
    with lease:
        pass
    until(lambda: expired(workshop) == [lease.run_id])


def test_progress_arrives_and_a_new_phase_clears_step_and_loss(workshop, lease):
    with lease:
        with lease.phase(Phase.FINE_TUNING):
            lease.report(step=3, total_steps=9, loss=0.5, epsilon=2.0)
            until(lambda: workshop.run(lease.run_id).step == 3)
            run = workshop.run(lease.run_id)
            assert (run.phase, run.total_steps, run.loss, run.epsilon) == (
                "fine_tuning",
                9,
                0.5,
                2.0,
            )
        with lease.phase(Phase.EVALUATING):
            until(lambda: workshop.run(lease.run_id).phase == "evaluating")
            run = workshop.run(lease.run_id)
            assert (run.step, run.total_steps, run.loss, run.epsilon) == (None, None, None, 2.0)
    assert set(lease.phase_seconds) == {"fine_tuning", "evaluating"}


def test_a_worker_that_waits_for_the_processes_of_a_run_leaves_what_they_have_reported(
    workshop, lease, stop
):
    database = workshop.services.database
    leading = Lease.shared(database, lease.run_id, lease.fencing_token, lease_s=LEASE_S, stop=stop)
    leading.report(phase=Phase.FINE_TUNING, step=3, total_steps=9, loss=0.5)
    with database.at_once() as connection:
        leading._beat(connection)
        reported = workshop.run(lease.run_id).reports
        lease._beat(connection)
    assert reported
    assert workshop.run(lease.run_id).reports == reported


def test_progress_is_written_a_few_times_a_second_at_most(workshop, lease):
    def writes():
        with workshop.transaction() as session:
            return session.scalar(text("SELECT xmin::text::bigint FROM runs"))

    seen = set()
    with lease:
        started = time.monotonic()
        for step in range(10**9):
            lease.report(step=step)
            if step % 1000 == 0:
                seen.add(writes())
            lasted_s = time.monotonic() - started
            if lasted_s > 1.5 and len(seen) > 1:
                break
    assert len(seen) <= 4 * lasted_s + 2


def test_a_lease_that_another_worker_holds_is_noticed(workshop, lease):
    with lease:
        with workshop.transaction() as session:
            row = runs.holder(session, lease.run_id, lease.fencing_token)
            runs.give_up_attempt(session, row, reason="silent", permanent=False, max_attempts=3)

        def lost():
            try:
                lease.report(step=1)
            except LeaseLostError:
                return True
            return False

        until(lost)
    assert workshop.run(lease.run_id).step is None


def test_a_worker_that_is_told_to_stop_hears_of_it_at_its_next_step(lease, stop):
    with lease:
        lease.check()
        stop.set()
        with pytest.raises(RunInterruptedError):
            lease.report(step=1)


def test_a_lease_outlasts_cut_connections(workshop, lease, stop, caplog):
    with lease:
        for _ in range(5):
            with workshop.transaction() as session:
                session.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE usename = current_user AND pid <> pg_backend_pid()"
                    )
                )
            time.sleep(0.15)
        lease.report(step=7)
        until(lambda: workshop.run(lease.run_id).step == 7)
        lease.check()


def test_the_reporting_thread_outlasts_what_the_database_refuses(workshop, lease):
    with lease:
        lease.report(epsilon=-1.0)
        time.sleep(0.6)
        lease.report(epsilon=1.0)
        until(lambda: workshop.run(lease.run_id).epsilon == 1.0)
        lease.check()


def test_a_run_that_is_handed_back_has_lost_no_attempt(workshop, lease):
    with workshop.transaction() as session:
        runs.hand_back(session, runs.holder(session, lease.run_id, lease.fencing_token))
    run = workshop.run(lease.run_id)
    assert (run.state, run.attempt) == ("queued", 0)
    with pytest.raises(LeaseLostError), workshop.transaction() as session:
        runs.holder(session, lease.run_id, lease.fencing_token)
    with workshop.transaction() as session:
        bodies = session.scalars(text("SELECT body FROM log_entries ORDER BY index")).all()
    assert json.loads(bodies[-1])["kind"] == "run.requeued"


def test_after_a_start_of_postgres_every_lease_holds_once_more(workshop, lease):
    time.sleep(LEASE_S + 0.1)
    with workshop.transaction() as session:
        assert repository.expired_run(session, lease_s=0.0) is not None
        assert repository.expired_run(session, lease_s=10 * 365 * 24 * 3600.0) is None


def test_a_sign_of_life_holds_no_lock_while_the_worker_thinks(workshop, lease, monkeypatch):
    """A worker that is frozen right then keeps nobody from giving the run to another."""
    frozen, go_on = threading.Event(), threading.Event()
    heartbeat = runs.heartbeat

    def freeze(*args, **kwargs):
        heartbeat(*args, **kwargs)
        frozen.set()
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(runs, "heartbeat", freeze)
    with lease:
        lease.report(step=1)
        assert frozen.wait(PATIENCE_S)
        with workshop.transaction() as session:
            session.execute(text("SET LOCAL lock_timeout = '2s'"))
            repository.run(session, lease.run_id, lock=True)
        go_on.set()

"""Where the worker differs from RQ's: Redis away, signals, and what is kept of a failure."""

import os
import signal
import subprocess
import time

import psutil
import pytest
from redis import RedisError
from rq import Worker
from rq.job import Job
from rq.serializers import JSONSerializer

from app.operations.monitoring.queue_state import queue_state
from app.runtime.locations import redis_connection
from tests.support.patience import until
from workers.queue import NAME, enqueue_import, enqueue_members, enqueue_run, open_queue
from workers.worker import RunWorker

SECRET = "record-17"


@pytest.fixture
def connection(services):
    connection = redis_connection(services.settings)
    connection.flushdb()
    return connection


@pytest.fixture
def worker(connection):
    return RunWorker([NAME], connection=connection, serializer=JSONSerializer)


def fork(seconds):
    """Fork a child like a run's, in a group of its own, that ends with the signal it gets."""
    ready, readying = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgrp()
        os.write(readying, b"!")
        time.sleep(seconds)
        os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(readying)
    return child


def test_a_run_goes_on_to_its_end_when_redis_is_away(worker, monkeypatch):
    def lose_redis(self, job, queue):
        self._horse_pid = fork(0.5)
        raise RedisError

    monkeypatch.setattr(Worker, "execute_job", lose_redis)
    started = time.monotonic()
    with pytest.raises(RedisError):
        worker.execute_job(None, None)
    assert time.monotonic() - started > 0.4
    with pytest.raises(ChildProcessError):
        os.waitpid(worker.horse_pid, os.WNOHANG)


def test_a_wish_to_stop_reaches_the_child(worker):
    worker._horse_pid = fork(30)
    worker.handle_warm_shutdown_request()
    _, status, _ = worker.wait_for_horse()
    assert os.WTERMSIG(status) == signal.SIGTERM
    worker.handle_warm_shutdown_request()


def test_a_worker_signs_on_again_after_redis_was_wiped(worker, connection):
    worker.register_birth()
    worker.set_state("idle")
    assert queue_state(connection).states == {"idle": 1}
    connection.flushdb()
    assert queue_state(connection).states == {}
    worker.heartbeat()
    assert queue_state(connection).states == {"idle": 1}
    worker.register_death()
    assert queue_state(connection).states == {}


def test_a_killed_worker_is_missed_until_another_of_its_host_starts(worker, connection):
    gone = subprocess.Popen(["true"])
    gone.wait()
    for killed, host, pid in (("here", worker.hostname, gone.pid), ("elsewhere", "other", 1)):
        other = RunWorker([NAME], name=killed, connection=connection, serializer=JSONSerializer)
        other.hostname, other.pid = host, pid
        other.register_birth()
        for pipeline in (None, connection.pipeline()):
            other.heartbeat(70, pipeline)
        assert connection.ttl(other.key) > 300
        connection.hset(other.key, "last_heartbeat", "2026-01-01T00:00:00.000000Z")
    assert queue_state(connection).silent == 2
    worker.register_birth()
    state = queue_state(connection)
    assert ([alive.name for alive in state.workers], state.silent) == ([worker.name], 1)
    worker.register_death()


HANGING = [("re.fullmatch", ("(a*)*b", 64 * "a")), ("operator.pow", (7, 1 << 60))]
"""Calls that keep all other threads from running for years, by name and arguments."""


@pytest.fixture
def hanging(connection, request, monkeypatch):
    """A job that hangs in compiled code, where leases and grace are short."""
    monkeypatch.setenv("EXPUNGE_LEASE_S", "0.5")
    monkeypatch.setattr("workers.worker.GRACE_S", 0.5)
    name, args = request.param
    queue = open_queue(connection)
    job = queue.enqueue_call(name, args=args, timeout=-1, failure_ttl=60)
    return queue, Job.fetch(job.id, connection=connection, serializer=JSONSerializer)


@pytest.mark.parametrize("hanging", HANGING, indirect=True, ids=["expression", "number"])
def test_a_child_that_hangs_in_compiled_code_is_killed(worker, hanging):
    queue, job = hanging
    worker.prepare_execution(job)
    worker.execute_job(job, queue)
    assert job.get_status(refresh=True) == "failed"


@pytest.mark.parametrize("hanging", HANGING[:1], indirect=True, ids=["expression"])
def test_a_child_that_hangs_does_not_outlive_its_worker(worker, hanging):
    queue, job = hanging
    worker.prepare_execution(job)
    if (killed := os.fork()) == 0:
        worker.pid = os.getpid()
        worker.execute_job(job, queue)
        os._exit(0)
    until(lambda: psutil.Process(killed).children())
    (child,) = psutil.Process(killed).children()
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_runs_come_before_all_other_work(connection):
    queue = open_queue(connection)
    for number in range(3):
        enqueue_import(queue, f"imp_{number}", "1")
        enqueue_members(queue, "run_1")
    enqueue_run(queue, "run_2")
    assert queue.get_jobs()[0].meta == {"run": "run_2"}


def test_redis_and_the_log_keep_no_words_of_an_exception(worker, connection, caplog):
    queue = open_queue(connection)
    job = queue.enqueue_call("workers.jobs.execute_run", args=("run",), failure_ttl=60)
    job = Job.fetch(job.id, connection=connection, serializer=JSONSerializer)
    worker.prepare_execution(job)
    error = ValueError(SECRET)
    worker.handle_exception(job, ValueError, error, None)
    worker.handle_job_failure(job=job, queue=queue, exc_string=f"ValueError: {SECRET}")
    assert queue.failed_job_registry.count == 1
    assert "ValueError" in caplog.text
    assert SECRET not in caplog.text
    assert job.latest_result().exc_string == ""


def test_the_title_of_a_process_names_the_work_and_not_the_run(worker, connection, monkeypatch):
    titles = []
    monkeypatch.setattr(worker, "procline", titles.append)
    queue = open_queue(connection)
    job = queue.enqueue_call("workers.jobs.execute_run", args=(SECRET,), description=SECRET)
    worker.prepare_job_execution(job)
    assert any("workers.jobs.execute_run" in title for title in titles)
    assert SECRET not in "".join(titles)


def test_signing_off_without_redis_is_no_error(worker, monkeypatch):
    def away(self):
        raise RedisError

    monkeypatch.setattr(Worker, "register_death", away)
    worker.teardown()

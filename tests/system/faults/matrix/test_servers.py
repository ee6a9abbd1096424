"""Redis and Postgres gone in the middle of a run, or just as it is published."""

from contextlib import contextmanager

import psutil
import psycopg
import pytest
from redis import Redis

from tests.support.facts import await_completed
from tests.support.patience import until
from tests.support.service import is_alive, kill
from tests.system.faults.matrix.cases import lost_its_lease


@pytest.mark.parametrize("point", ["after_lease", "mid_noise", "before_commit", "after_publish"])
def test_redis_wiped(point, service, client, points, forget):
    points.arm(point, "SIGSTOP")
    request = forget()
    (worker,) = service.frozen()
    with Redis.from_url(service.servers.redis_url) as connection:
        connection.flushall()
    worker.resume()
    await_completed(client, request)


@pytest.mark.parametrize("point", ["after_lease", "mid_noise", "before_commit", "before_shred"])
def test_postgres_restarted(point, service, client, points, forget):
    points.arm(point, "SIGSTOP")
    request = forget()
    (worker,) = service.frozen()
    postmaster = psutil.Process(service.servers.postgres.pid())
    kill([postmaster, *postmaster.children(recursive=True)])
    worker.resume()
    await_completed(client, request)


@pytest.fixture
def owner(service):
    """A connection of the database's superuser, who may tell Postgres what to do."""
    url = service.servers.migration_url.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@contextmanager
def commits_unanswered(owner):
    """Have Postgres commit, and answer only when a standby has followed: there is none."""
    _set(owner, "synchronous_standby_names = 'nobody'")
    try:
        yield
    finally:
        _set(owner, "synchronous_standby_names = ''")


def _set(owner, setting):
    # Its own writes must not wait for anybody.
    owner.execute("SET synchronous_commit = local")
    owner.execute(f"ALTER SYSTEM SET {setting}")
    owner.execute("SELECT pg_reload_conf()")


def backends(owner, condition):
    """Return the process ids of the service's connections of which a condition holds."""
    query = f"SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {condition}"
    return [pid for (pid,) in owner.execute(query).fetchall()]


def in_the_midst_of_publishing(owner):
    """Return the one connection that has written a version; the heartbeat's may be frozen, too."""
    writing = "relation = 'versions'::regclass AND mode = 'RowExclusiveLock'"
    condition = f"pid IN (SELECT pid FROM pg_locks WHERE {writing})"
    (backend,) = until(lambda: len(found := backends(owner, condition)) == 1 and found)
    return backend


@pytest.mark.parametrize("worker_dies", [False, True])
def test_the_answer_to_the_commit_is_lost(worker_dies, service, client, points, owner, forget):
    points.arm("before_commit", "SIGSTOP")
    request = forget()
    (worker,) = service.frozen()
    backend = in_the_midst_of_publishing(owner)
    with commits_unanswered(owner):
        worker.resume()
        until(lambda: backends(owner, f"pid = {backend} AND wait_event = 'SyncRep'"))
        if worker_dies:
            kill([worker])
        owner.execute("SELECT pg_terminate_backend(%s)", [backend])
        until(lambda: not backends(owner, f"pid = {backend}"))
    assert await_completed(client, request)["attempt"] == 1
    until(lambda: not is_alive(worker))
    assert not lost_its_lease(service, client), "it did not recognise its own publication"

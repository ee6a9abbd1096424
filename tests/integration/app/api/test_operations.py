"""Readiness: every part is taken away once, and the answer says which."""

import re
import shutil
from collections.abc import Iterator

import pytest
from alembic import command
from fastapi.testclient import TestClient
from redis import Redis
from rq import Worker
from rq.serializers import JSONSerializer
from sqlalchemy import Engine, event, text

from app.cli.application import create_app
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import signing_keys
from app.operations.monitoring import readiness
from app.operations.monitoring.queue_state import QUEUE, note_dispatcher
from app.operations.schema import migration_config
from app.runtime.locations import (
    key_store_dir,
    model_signing_key_file,
    signing_key_file,
)
from app.services import Services, open_services

PARTS = (
    "database",
    "migrations",
    "ledger",
    "signing_key",
    "key_store",
    "disk",
    "redis",
    "workers",
    "dispatcher",
)


@pytest.fixture(autouse=True)
def worker(redis: Redis) -> Iterator[Worker]:
    """A worker and a dispatcher that have given signs of life."""
    worker = Worker([QUEUE], connection=redis, serializer=JSONSerializer)
    worker.register_birth()
    note_dispatcher(redis, "dispatcher_1")
    yield worker
    worker.register_death()


def _ready(services: Services, **settings: str) -> tuple[int, str, dict[str, str]]:
    """Return status, the word for the whole, and every part that is not ok."""
    asked = services
    if settings:
        asked = open_services(services.settings.model_copy(update=settings))
    answer = TestClient(create_app(asked)).get("/readyz")
    if settings:
        asked.database.dispose()
    parts = answer.json()
    whole = parts.pop("status")
    assert tuple(parts) == PARTS
    return answer.status_code, whole, {name: word for name, word in parts.items() if word != "ok"}


def test_with_everything_there_it_is_ready(services: Services) -> None:
    assert _ready(services) == (200, "ok", {})


def test_without_a_database(services: Services) -> None:
    url = "postgresql+psycopg://nobody@/nothing?host=/nonexistent"
    status, whole, parts = _ready(services, database_url=url)
    assert (status, whole) == (503, "unavailable")
    unknown = {"migrations": "unknown", "ledger": "unknown", "signing_key": "unknown"}
    assert parts == {"database": "unreachable", **unknown}


def test_with_little_room_on_the_disk(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "LOW_DISK_BYTES", 2**60)
    status, whole, parts = _ready(services)
    assert (status, whole) == (200, "degraded")
    assert re.fullmatch(r"nearly full: \d+ MiB are left", parts.pop("disk"))
    assert parts == {}


def test_without_a_migration(services: Services, app_database: Engine) -> None:
    url = app_database.url.render_as_string(hide_password=False)
    command.downgrade(migration_config(url), "-1")
    try:
        status, whole, parts = _ready(services)
    finally:
        command.upgrade(migration_config(url, service_role="expunge_service"), "head")
    assert (status, whole) == (503, "unavailable")
    assert parts["migrations"] == "missing: run 'expunge init'"
    assert _ready(services)[0] == 200


def test_with_a_migration_of_a_newer_program(services: Services, app_database: Engine) -> None:
    update = text("UPDATE alembic_version SET version_num = :version")
    with app_database.begin() as connection:
        head = connection.scalar(text("SELECT version_num FROM alembic_version"))
        connection.execute(update, {"version": "9999"})
    try:
        found = _ready(services)
    finally:
        with app_database.begin() as connection:
            connection.execute(update, {"version": head})
    assert found == (200, "degraded", {"migrations": "newer than this program"})


def test_a_process_that_cannot_open_a_connection_says_so(services: Services) -> None:
    def fail(*_: object) -> None:
        raise OSError("too many open files")

    event.listen(services.database.engine, "before_cursor_execute", fail)
    status, _, parts = _ready(services)
    event.remove(services.database.engine, "before_cursor_execute", fail)
    assert (status, parts["database"]) == (503, "unreachable")


@pytest.mark.parametrize("key_file", [signing_key_file, model_signing_key_file])
def test_without_a_private_key(services: Services, key_file) -> None:
    app = create_app(services)
    key_file(services.settings).unlink()
    answer = TestClient(app).get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["signing_key"] == "unreadable"


def test_with_a_signing_key_that_was_retired(services: Services) -> None:
    other = signing_key_file(services.settings).with_suffix(".next")
    with services.database.transaction() as session:
        new = StatementSigner.from_file(other, create=True)
        signing_keys.rotate(session, old=services.signer, new=new)
    expected = {"signing_key": "not the one in use: start the service again"}
    assert _ready(services) == (503, "unavailable", expected)


@pytest.mark.parametrize("missing", [".", "periods", "wrapped", "periods/1"])
def test_without_the_key_store(services: Services, missing: str) -> None:
    path = key_store_dir(services.settings) / missing
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    status, whole, parts = _ready(services)
    listed = {} if missing.startswith("periods") else {"ledger": "unknown"}
    assert (status, whole, parts) == (503, "unavailable", {"key_store": "unusable", **listed})


def test_without_redis_requests_are_still_accepted(services: Services) -> None:
    status, whole, parts = _ready(services, redis_url="redis://127.0.0.1:1")
    assert (status, whole) == (200, "degraded")
    assert parts == {"redis": "unreachable", "workers": "unknown", "dispatcher": "unknown"}


def test_without_a_worker(services: Services, worker: Worker) -> None:
    worker.register_death()
    assert _ready(services) == (200, "degraded", {"workers": "none is alive"})


@pytest.mark.parametrize("silent", [1, 2])
def test_with_workers_that_stopped_to_report(services: Services, redis: Redis, silent: int) -> None:
    for _ in range(silent):
        other = Worker([QUEUE], connection=redis, serializer=JSONSerializer)
        other.register_birth()
        redis.hset(other.key, "last_heartbeat", "2026-01-01T00:00:00.000000Z")
    expected = {"workers": f"{silent} did not report for a minute"}
    assert _ready(services) == (200, "degraded", expected)


def test_without_a_dispatcher(services: Services, redis: Redis) -> None:
    redis.delete("expunge:dispatchers")
    assert _ready(services) == (200, "degraded", {"dispatcher": "none is alive"})

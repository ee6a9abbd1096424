"""A service whose database is behind Debian's PgBouncer, which pools transactions."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.domain.errors import ConfigurationError
from app.domain.release import CONFIG
from app.runtime.database import Database
from app.runtime.database.engine import require_none
from app.runtime.embedded import EmbeddedServers
from app.runtime.embedded.home import find_account
from app.runtime.embedded.postgres import OWNER, SERVICE
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.patience import PATIENCE_S, until
from tests.support.service import Service, free_port

_PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_SESSIONS = 6  # fewer than the service has connections: each is many clients' in turn
_CONFIG = """
[databases]
* = host={sockets} port=5432
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = trust
auth_file = {sockets}/users.txt
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 500
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_PROGRAM is None, reason="there is no pgbouncer here"),
]


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Return where a pooler in front of an empty PostgreSQL answers the service, and the owner."""
    folder = tmp_path / ("d" * 90)  # so the sockets are where the servers' account may look
    servers = EmbeddedServers(folder)
    servers.start()
    port, account = free_port(), find_account()
    config = servers._home.sockets / "pgbouncer.ini"
    config.write_text(_CONFIG.format(sockets=config.parent, port=port, sessions=_SESSIONS))
    users = config.with_name("users.txt")
    users.write_text(f'"{OWNER}" ""\n"{SERVICE}" ""\n')
    for file in (config, users):
        file.chmod(0o644)
    user = account.uid if account is not None and os.geteuid() == 0 else None
    assert _PROGRAM is not None
    with subprocess.Popen(
        [_PROGRAM, str(config)], user=user, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as pooler:
        try:
            service, owner = (
                f"postgresql+psycopg://{role}@127.0.0.1:{port}/expunge" for role in (SERVICE, OWNER)
            )
            until(lambda: _answers(service))
            yield service, owner
        finally:
            pooler.terminate()
            pooler.wait(PATIENCE_S)
            servers.stop()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url.replace("+psycopg", "")).close()
    except psycopg.OperationalError:
        return False
    return True


def test_sessions_that_are_shared_mix_nothing_up(urls: tuple[str, str]) -> None:
    databases = [
        Database(urls[0], idle_in_transaction_s=300.0 + i, process="API") for i in range(4)
    ]

    def use(number: int) -> None:
        limit = 300 + number % 4
        for turn in range(60):
            with databases[number % 4].transaction() as session:
                asked = text(f"SELECT {':a + ' * (number % 3)}:a, current_setting('TimeZone')")
                assert session.execute(asked, {"a": turn}).one() == ((number % 3 + 1) * turn, "UTC")
                found = session.scalar(text("SHOW idle_in_transaction_session_timeout"))
                assert found == (f"{limit}s" if limit % 60 else f"{limit // 60}min")

    try:
        with ThreadPoolExecutor(12) as threads:
            for done in [threads.submit(use, number) for number in range(12)]:
                done.result()
        with pytest.raises(ConfigurationError, match="pooler"):
            require_none(databases[0])
        with pytest.raises(DBAPIError), databases[0].transaction() as session:
            session.execute(text("SELECT 1/0"))
    finally:
        for database in databases:
            database.dispose()


def test_a_service_learns_forgets_and_publishes_behind_a_pooler(
    tmp_path: Path, urls: tuple[str, str]
) -> None:
    place = {"kind": "folder", "path": str(tmp_path / "published")}
    service = Service(
        tmp_path / "data",
        EXPUNGE_DATABASE_URL=urls[0],
        EXPUNGE_MIGRATION_URL=urls[1],
        EXPUNGE_PUBLISHERS=json.dumps({"shelf": place}),
    )
    (tmp_path / "published").mkdir()
    try:
        service.start()
        with service.client() as client:
            client.define_dataset(**DATASET)
            client.push_records("digits", digits_parquet())
            client.define_model(model(first_release="as_trained"))
            client.wait_for_model("digits-mlp", timeout_s=PATIENCE_S)
            client.publish_model("digits-mlp", "shelf")
            people = [f"subject-{number}" for number in range(24)]
            with ThreadPoolExecutor(12) as callers:
                asked = list(
                    callers.map(lambda who: client.forget("digits", subject_ids=[who]), people)
                )
            for request in asked:
                ended = until(lambda seen=request["id"]: _ended(client.request(seen, wait_s=10)))
                assert ended["state"] == "completed", ended["failure_reason"]
            newest = client.certified("digits-mlp")["number"]
            there = tmp_path / "published" / "digits-mlp" / CONFIG
            until(lambda: json.loads(there.read_text())["version"] == newest)
        command = [sys.executable, "-m", "app.cli", "log", "fsck"]
        subprocess.run(command, env=service.environment(), check=True)
    finally:
        service.discard()
    told = service.log.read_text()
    assert "prepared statement" not in told
    assert "internal error" not in told
    assert "the database failed" not in told


def _ended(request: dict[str, Any]) -> dict[str, Any] | None:
    return request if request["state"] in ("completed", "failed") else None

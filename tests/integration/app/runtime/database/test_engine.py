"""What a connection of the service may not do: wait for ever, or keep others waiting for ever."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import JSON, text
from sqlalchemy.exc import DBAPIError

from app.evidence import log
from app.operations.schema import all_tables
from app.runtime.database import IDLE_IN_TRANSACTION_S, Database, is_away
from app.runtime.database import engine as database_module
from app.services import Services
from tests.support.patience import PATIENCE_S

_REPOSITORY = Path(__file__).parents[5]
_HOLDER = """
import sys
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from app.runtime.database import Database
from app.evidence import log

def stand_still(_session):
    print("holding", flush=True)
    sys.stdin.read(1)

event.listen(Session, "before_commit", stand_still)  # after the log's own, which takes its lock
try:
    with Database(sys.argv[1], idle_in_transaction_s=1.0).transaction() as session:
        for _ in range(4):  # several entries and nodes: the last statement has many rows
            log.append(session, "test.frozen")
except DBAPIError as error:
    sys.exit("refused" if error.connection_invalidated else "unexpected")
"""


def _limit(database: Database) -> str:
    with database.transaction() as session:
        return str(session.scalar(text("SHOW idle_in_transaction_session_timeout")))


def test_a_process_that_is_frozen_in_a_transaction_gives_up_the_logs_lock(
    services: Services, database_url: str
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, database_url],
        cwd=_REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        holder.send_signal(signal.SIGSTOP)
        with services.database.transaction() as session:
            locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            assert session.scalar(text(locks)) == 1
        with services.database.transaction() as session:
            session.execute(text("SET LOCAL lock_timeout = '30s'"))
            log.append(session, "test.other")
    finally:
        holder.send_signal(signal.SIGCONT)
        _, errors = holder.communicate("x", timeout=PATIENCE_S)
    assert (holder.returncode, errors) == (1, "refused\n")
    with services.database.transaction() as session:
        kinds = session.scalars(text("SELECT kind FROM log_entries ORDER BY index")).all()
    assert kinds[-1] == "test.other"
    assert "test.frozen" not in kinds


def test_every_connection_has_the_limit_and_may_have_another(database_url: str) -> None:
    for url, limit in (
        (database_url, "5min"),
        (f"{database_url}&options=-c%20idle_in_transaction_session_timeout%3D7s", "7s"),
    ):
        database = Database(url)
        assert _limit(database) == limit
        database.engine.dispose()
        assert _limit(database) == limit
        database.dispose()
    assert IDLE_IN_TRANSACTION_S == 300.0


def test_a_server_that_accepts_and_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database_module, "_CONNECT_S", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        database = Database(f"postgresql+psycopg://nobody@127.0.0.1:{port}/nothing")
        with pytest.raises(DBAPIError, match="timeout"), database.transaction() as session:
            session.execute(text("SELECT 1"))
        database.dispose()


@pytest.mark.parametrize(
    ("url", "statement", "away"),
    [
        ("postgresql+psycopg://nobody@127.0.0.1:1/nowhere", "SELECT 1", True),
        (None, "SELECT pg_terminate_backend(pg_backend_pid())", True),
        (None, "SELECT 1 / 0", False),
        (None, "SELECT 'half a text: \0'", False),
    ],
)
def test_an_outage_is_told_from_a_refusal(
    database_url: str, url: str | None, statement: str, away: bool
) -> None:
    database = Database(url or database_url)
    with pytest.raises(DBAPIError) as caught, database.transaction() as session:
        session.execute(text(statement))
    assert is_away(caught.value) is away
    database.dispose()


def test_nothing_is_stored_as_nothing_in_every_column_of_json() -> None:
    columns = [each for table in all_tables().sorted_tables for each in table.columns]
    documents = [each for each in columns if isinstance(each.type, JSON) and each.nullable]
    assert {"tracking", "members", "phase_seconds"} < {each.name for each in documents}
    assert [str(each) for each in documents if not each.type.none_as_null] == []

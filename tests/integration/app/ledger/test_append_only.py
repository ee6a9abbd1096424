"""What the database itself refuses."""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from app.access import api_keys
from app.cli import application as main
from app.evidence import log
from app.evidence.log.tables import LogCosignatureRow
from app.operations import schema
from app.runtime.database import Database
from app.runtime.embedded import EmbeddedServers
from app.services import Services
from migrations.guards import APPEND_ONLY
from tests.support.logbook import write
from tests.support.workshop import Workshop

CHANGES = {
    "log_entries": "UPDATE log_entries SET body = ''",
    "tree_nodes": "UPDATE tree_nodes SET hash = hash",
    "log_checkpoints": "UPDATE log_checkpoints SET note = ''",
    "log_cosignatures": "UPDATE log_cosignatures SET line = ''",
    "certificates": "UPDATE certificates SET envelope = ''",
    "forget_request_records": "UPDATE forget_request_records SET commitment = ''",
    "accounted_requests": "UPDATE accounted_requests SET records = records",
}
STATEMENTS = [
    *CHANGES.values(),
    *(f"DELETE FROM {table}" for table in APPEND_ONLY),
    *(f"TRUNCATE {table} CASCADE" for table in APPEND_ONLY),
    "INSERT INTO log_entries VALUES (0, '', '') ON CONFLICT (index) DO UPDATE SET body = ''",
    "MERGE INTO log_entries USING (SELECT 0 AS i) AS s ON index = s.i WHEN MATCHED THEN DELETE",
]


@pytest.fixture
def written(workshop: Workshop) -> Services:
    """A log, its nodes, a checkpoint, a false cosignature of it, a certificate and a request."""
    workshop.forged = True
    workshop.train()
    learned, held_out = workshop.split()
    workshop.forget(learned[0], held_out[0])
    workshop.unlearn()
    with workshop.services.database.transaction() as session:
        session.add(LogCosignatureRow(size=1, witness="w", line="l"))
        session.flush()
        for table in APPEND_ONLY:
            assert session.scalar(text(f"SELECT count(*) FROM {table}")) > 0
    return workshop.services


def _refusals(connection: Connection, statements: Iterable[str]) -> dict[str, str]:
    """Return what the database says to each statement; none of them changes anything."""
    said = {}
    for statement in statements:
        attempt = connection.begin_nested()
        try:
            connection.execute(text(statement))
            said[statement] = "not refused"
        except ProgrammingError as error:
            said[statement] = str(error)
        attempt.rollback()
    return said


def test_triggers_refuse_even_a_superuser(written: Services, app_database: Engine) -> None:
    with app_database.connect() as connection:
        assert connection.scalar(text("SELECT usesuper FROM pg_user WHERE usename = current_user"))
        refused = _refusals(connection, STATEMENTS)
        connection.execute(text("SET session_replication_role = replica"))
        while_replaying = _refusals(connection, (f"DELETE FROM {table}" for table in APPEND_ONLY))
    assert len(refused) == len(STATEMENTS)
    for statement, said in [*refused.items(), *while_replaying.items()]:
        assert "is append-only" in said, statement


BEYOND_THE_SERVICE = [
    *STATEMENTS,
    *(f"ALTER TABLE {table} DISABLE TRIGGER append_only" for table in APPEND_ONLY),
    *(f"DROP TABLE {table} CASCADE" for table in APPEND_ONLY),
    "SET session_replication_role = replica",
    "CREATE TABLE anything (word text)",
    "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql"
    " AS $$BEGIN RETURN NULL; END$$",
    "UPDATE alembic_version SET version_num = ''",
    "SET ROLE postgres",
]


def test_the_services_role_may_only_add(written: Services) -> None:
    with written.database.transaction() as session:
        refused = _refusals(session.connection(), BEYOND_THE_SERVICE)
        session.execute(text("UPDATE api_keys SET name = 'renamed'"))
        session.execute(text("DELETE FROM outbox"))
    assert len(refused) == len(BEYOND_THE_SERVICE)
    for statement, said in refused.items():
        assert "permission denied" in said or "must be owner" in said, statement


def test_a_role_that_could_rewrite_the_log_is_recognised(
    services: Services, app_database: Engine
) -> None:
    owner = Database(app_database.url.render_as_string(hide_password=False))
    assert schema.may_rewrite_log(owner)
    owner.dispose()
    assert not schema.may_rewrite_log(services.database)


def test_granting_again_takes_back_what_was_granted_too_much(
    services: Services, app_database: Engine
) -> None:
    with app_database.begin() as connection:
        connection.execute(text("GRANT UPDATE, TRUNCATE ON log_entries TO expunge_service"))
    assert schema.may_rewrite_log(services.database)
    schema.upgrade(
        app_database.url.render_as_string(hide_password=False),
        service_url=services.settings.database_url,
    )
    assert not schema.may_rewrite_log(services.database)


def test_starting_as_the_owner_warns(
    services: Services,
    app_database: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "expunge.api"):
        main.app_from_environment().state.services.database.dispose()
        assert caplog.text == ""
        owner = app_database.url.render_as_string(hide_password=False)
        monkeypatch.setenv("EXPUNGE_DATABASE_URL", owner)
        main.app_from_environment().state.services.database.dispose()
    assert "EXPUNGE_MIGRATION_URL" in caplog.text


def test_an_unreachable_database_does_not_keep_the_api_from_starting(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_DATABASE_URL", "postgresql+psycopg://x@/x?host=/nowhere")
    app = main.app_from_environment()
    with pytest.raises(DBAPIError):
        write(app.state.services, 1)
    app.state.services.database.dispose()


def test_two_roles_of_ones_own_need_no_superuser(servers: EmbeddedServers) -> None:
    """As docs/log.md tells an operator to do it."""
    admin = create_engine(
        servers.migration_url.replace("/expunge?", "/postgres?"), isolation_level="AUTOCOMMIT"
    )

    def url(role: str) -> str:
        return servers.migration_url.replace("postgres@/expunge?", f"{role}@/roles_of_ones_own?")

    with admin.connect() as connection:
        for role in ("some_owner", "some service"):
            connection.execute(text(f'CREATE ROLE "{role}" LOGIN'))
        connection.execute(text("CREATE DATABASE roles_of_ones_own OWNER some_owner"))
        database = Database(url("some%20service"))
        try:
            for _ in range(2):
                schema.upgrade(url("some_owner"), service_url=url("some%20service"))
            assert not schema.may_rewrite_log(database)
            with database.transaction() as session:
                # As the migrations leave them, and no test.
                query = "SELECT tgenabled FROM pg_trigger WHERE tgname = 'append_only'"
                assert session.scalars(text(query)).all() == ["A"] * len(APPEND_ONLY)
                api_keys.create_key(session, name="first", scopes=[])
            with pytest.raises(ProgrammingError), database.transaction() as session:
                session.execute(text("DELETE FROM log_entries"))
            owner = Database(url("some_owner"))
            assert schema.may_rewrite_log(owner)
            with pytest.raises(ProgrammingError), owner.transaction() as session:
                session.execute(text("DELETE FROM log_entries"))
            owner.dispose()
        finally:
            database.dispose()
            connection.execute(text("DROP DATABASE roles_of_ones_own WITH (FORCE)"))
            for role in ("some_owner", "some service"):
                connection.execute(text(f'DROP ROLE "{role}"'))
    admin.dispose()


def test_an_entry_has_no_other_time_than_the_databases(
    written: Services, app_database: Engine
) -> None:
    """A verifier believes it: a certificate by a key that has ended could be dated back."""
    for days, engine in product((-1, 1), (written.database.engine, app_database)):
        at = (datetime.now(UTC) + timedelta(days=days)).isoformat()
        body = log.canonical_json({"kind": "certificate.issued", "recorded_at": at})
        with engine.connect() as connection, pytest.raises(ProgrammingError, match="is settled"):
            connection.execute(
                text("INSERT INTO log_entries VALUES (1000000, 'certificate.issued', :body)"),
                {"body": body},
            )

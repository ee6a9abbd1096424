"""Migrations and tables say the same."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from alembic import command
from sqlalchemy import Engine, create_engine, inspect, text

from app import schema
from app.database import Database
from app.embedded import EmbeddedServers
from app.ledger import fsck, log, merkle
from tests.support import trees


@pytest.fixture
def empty_database(servers: EmbeddedServers) -> Iterator[str]:
    """A database without a single table."""
    name = f"empty_{uuid4().hex}"
    admin = create_engine(
        servers.migration_url.replace("/expunge?", "/postgres?"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        yield servers.migration_url.replace("/expunge?", f"/{name}?")
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


def _tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {"alembic_version"}


def test_migrations_make_exactly_the_tables_and_unmake_them(empty_database: str) -> None:
    engine = create_engine(empty_database)
    config = schema.migration_config(empty_database)

    schema.upgrade(empty_database)
    command.check(config)
    assert _tables(engine) == set(schema.all_tables().tables)

    command.downgrade(config, "base")
    assert _tables(engine) == set()
    schema.upgrade(empty_database)
    engine.dispose()


def test_migrations_make_every_check_of_the_tables(app_database: Engine) -> None:
    """``alembic check`` does not compare CHECK constraints."""
    inspector = inspect(app_database)
    for name, table in schema.all_tables().tables.items():
        declared = {
            str(constraint.name)
            for constraint in table.constraints
            if type(constraint).__name__ == "CheckConstraint"
        }
        made = {str(check["name"]) for check in inspector.get_check_constraints(name)}
        assert made == declared, name


def test_raw_names_of_requests_leave_the_database_with_their_files(empty_database: str) -> None:
    person = "alice.liddell@example.com"
    engine = create_engine(empty_database)
    config = schema.migration_config(empty_database)
    command.upgrade(config, "0006")
    with engine.begin() as connection:
        directory = Path(connection.scalar(text("SHOW data_directory")))
        for statement in (
            "INSERT INTO datasets (id, name, feature_shape, feature_dtype, feature_offset,"
            " feature_scale, classes) VALUES ('d', 'd', '[2]', 'float32', 0, 1, 2)",
            "INSERT INTO api_keys (id, name, key_hash, scopes) VALUES ('k', 'k', 'k', '[]')",
            "INSERT INTO forget_requests (id, dataset_id, api_key_id, external_id,"
            " idempotency_key, request_digest, state, forget_epoch, record_count,"
            f" received_at, due_at) VALUES ('fr', 'd', 'k', '{person}', '{person}', 'x',"
            " 'accepted', 1, 1, now(), now())",
        ):
            connection.execute(text(statement))
    before = _path_of(engine, directory)
    _checkpoint(engine)
    assert person.encode() in before.read_bytes()

    command.upgrade(config, "0007")
    _checkpoint(engine)

    after = _path_of(engine, directory)
    assert person.encode() not in after.read_bytes()
    assert not before.exists() or before.read_bytes() == b""
    with engine.connect() as connection:
        query = "SELECT id, external_key, idempotency_key FROM forget_requests"
        assert connection.execute(text(query)).all() == [("fr", None, None)]
    command.downgrade(config, "0006")
    engine.dispose()


def _path_of(engine: Engine, directory: Path) -> Path:
    with engine.connect() as connection:
        query = "SELECT pg_relation_filepath('forget_requests')"
        return directory / str(connection.scalar(text(query)))


def _checkpoint(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CHECKPOINT"))


OLD_BODIES = [f'{{"kind":"test.old","number":{number},"word":"\\u00fc"}}' for number in range(13)]


def test_a_log_from_before_the_tree_gets_one_and_goes_back(
    servers: EmbeddedServers, empty_database: str
) -> None:
    engine = create_engine(empty_database)
    config = schema.migration_config(empty_database)
    command.upgrade(config, "0003")
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO log_entries (index, kind, body, recorded_at)"
                " SELECT number, 'test.old', body,"
                " timestamptz '2026-01-02 03:04:05.678+00' + number * interval '1 second'"
                " FROM unnest(CAST(:bodies AS text[])) WITH ORDINALITY AS old (body, number)"
            ),
            {"bodies": OLD_BODIES},
        )

    schema.upgrade(empty_database)
    database = Database(empty_database)
    with database.transaction() as session:
        rows = session.execute(text("SELECT index, body FROM log_entries ORDER BY index")).all()
        assert [index for index, _ in rows] == list(range(13))
        assert rows[0][1] == (
            '{"kind":"test.old","number":0,"recorded_at":"2026-01-02T03:04:06.678000+00:00",'
            '"word":"\\u00fc"}'
        )
        leaves = [body.encode() for _, body in rows]
        for size in range(14):
            assert merkle.root(session, size) == trees.root(leaves[:size])
        log.append(session, "test.new")
    summary = fsck.check(database, keys=[], report=pytest.fail)
    assert summary.size == 14
    database.dispose()

    command.downgrade(config, "0003")
    with engine.begin() as connection:
        query = "SELECT index, extract(epoch FROM recorded_at) FROM log_entries ORDER BY index"
        rows = connection.execute(text(query)).all()
        assert [index for index, _ in rows] == list(range(1, 15))
        assert float(rows[2][1] - rows[0][1]) == 2.0
    engine.dispose()

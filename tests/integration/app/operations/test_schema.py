"""Migrations and tables say the same."""

import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest
from alembic import command
from sqlalchemy import Engine, create_engine, inspect, text

from app.operations import schema
from app.runtime.embedded import EmbeddedServers
from tests.support.patience import PATIENCE_S


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


def test_two_that_migrate_at_once_do_not_disturb_each_other(empty_database: str) -> None:
    program = f"from app.operations import schema; schema.upgrade({empty_database!r})"
    both = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [each.wait(PATIENCE_S) for each in both] == [0, 0]


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

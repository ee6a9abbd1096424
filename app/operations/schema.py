"""The database schema: all tables, the migrations that create them, and the roles' privileges."""

from functools import cache
from importlib import resources
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, text
from sqlalchemy.orm import Session

import app.access.tables
import app.delivery.callbacks.tables
import app.delivery.derivatives
import app.delivery.publishing.tables
import app.evidence.certificates.tables
import app.evidence.log.tables
import app.ledger.tables
import app.registry.datasets.tables
import app.registry.tables
import app.storage.tables  # noqa: F401
from app.runtime.database import Base, Database
from app.runtime.database.engine import Logged

_EXCESS = text(
    """
    SELECT relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    WHERE tgname IN ('append_only', 'guard') AND (
        pg_has_role(relowner, 'USAGE')
        OR has_table_privilege(tgrelid, 'DELETE, TRUNCATE, TRIGGER')
        OR tgname = 'append_only' AND has_table_privilege(tgrelid, 'UPDATE')
    )
    """
)
_LARGE_OBJECTS = text("SELECT has_function_privilege('lo_from_bytea(oid, bytea)', 'EXECUTE')")


def all_tables() -> MetaData:
    """Return the metadata of every table."""
    return Base.metadata


def logged_tables() -> list[type[Any]]:
    """Return the classes of the tables whose rows the log follows."""
    return [table.class_ for table in Base.registry.mappers if issubclass(table.class_, Logged)]


def migration_config(migration_url: str, *, service_role: str | None = None) -> Config:
    """Return Alembic's configuration for one database, under the role that owns the tables.

    Another ``service_role`` is granted only what the service needs.
    """
    config = Config()
    config.set_main_option("script_location", str(resources.files("migrations")))
    config.set_main_option("sqlalchemy.url", migration_url.replace("%", "%%"))
    config.attributes["service_role"] = service_role
    return config


def upgrade(migration_url: str, *, service_url: str | None = None) -> None:
    """Bring a database to the newest schema, and let the service's role work with it."""
    role = None if service_url in (None, migration_url) else role_of(service_url)
    command.upgrade(migration_config(migration_url, service_role=role), "head")


@cache
def head_revision() -> str | None:
    """Return the newest migration that this program knows."""
    return _known_migrations().get_current_head()


def is_behind(revision: str | None) -> bool:
    """Say whether a database of this revision lacks migrations that this program knows.

    An unknown revision belongs to a newer program.
    """
    known = {script.revision for script in _known_migrations().walk_revisions()}
    return revision is None or (revision in known and revision != head_revision())


@cache
def _known_migrations() -> ScriptDirectory:
    return ScriptDirectory.from_config(migration_config(""))


def revision_of(session: Session) -> str | None:
    """Return the newest migration that was applied to a database; None before the first."""
    if session.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    revision = session.scalar(text("SELECT version_num FROM alembic_version"))
    return None if revision is None else str(revision)


def role_of(url: str) -> str | None:
    """Return the name of the role that a URL connects as."""
    engine = create_engine(url, hide_parameters=True)
    try:
        with engine.connect() as connection:
            return str(connection.scalar(text("SELECT current_user")))
    finally:
        engine.dispose()


def may_rewrite_log(database: Database) -> bool:
    """Return whether the service's own role could rewrite the log, or delete what it records."""
    with database.transaction() as session:
        return session.scalar(_EXCESS) is not None


def may_store_large_objects(database: Database) -> bool:
    """Return whether the service's own role could store large objects, which are never erased."""
    with database.transaction() as session:
        return bool(session.scalar(_LARGE_OBJECTS))

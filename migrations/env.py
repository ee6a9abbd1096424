"""Runs migrations against the configured database, with timeouts on locks and statements."""

from alembic import context
from sqlalchemy import create_engine, text

from app.operations.schema import all_tables, role_of
from migrations.guards import grant

_LOCK = 0x6578_7075  # "expu": any number that no other program of this database locks


def main() -> None:
    url, role = _target()
    # Nothing outlasts the transaction: a pooler may give the next one another session.
    engine = create_engine(url, hide_parameters=True, connect_args={"prepare_threshold": None})
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=all_tables(), compare_type=True)
        with context.begin_transaction():
            connection.execute(text("SET LOCAL lock_timeout = '10s'"))
            connection.execute(text("SET LOCAL statement_timeout = '10min'"))
            # Of two that are started at once, one waits.
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            context.run_migrations()
            if role is not None:
                grant(connection, role)
    engine.dispose()


def _target() -> tuple[str, str | None]:
    """Return the URL to migrate, and the role that is to work there if it is another."""
    url = context.config.get_main_option("sqlalchemy.url")
    if url is not None:
        return url, context.config.attributes.get("service_role")
    from app.runtime.locations import database_url, migration_url
    from app.runtime.settings import Settings

    settings = Settings()
    owner_url, service_url = migration_url(settings), database_url(settings)
    return owner_url, None if owner_url == service_url else role_of(service_url)


main()

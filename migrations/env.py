"""Runs migrations against the configured database, with timeouts on locks and statements."""

from alembic import context
from sqlalchemy import create_engine, text

from app.schema import all_tables


def main() -> None:
    url = context.config.get_main_option("sqlalchemy.url")
    if url is None:
        from app.services import database_url
        from app.settings import Settings

        url = database_url(Settings())
    engine = create_engine(url, hide_parameters=True)
    with engine.connect() as connection:
        connection.execute(text("SET lock_timeout = '10s'"))
        connection.execute(text("SET statement_timeout = '10min'"))
        connection.commit()
        context.configure(connection=connection, target_metadata=all_tables(), compare_type=True)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


main()

"""Which processes of the service are connected to the ledger, on whichever machine."""

from sqlalchemy import text

from app.domain.errors import ConfigurationError
from app.runtime.database.engine import PROCESSES, Database, is_pooled

_CONNECTED = text(
    "SELECT DISTINCT application_name,"
    " coalesce('from ' || host(client_addr), 'on the database''s machine') FROM pg_stat_activity"
    " WHERE datname = current_database() AND starts_with(application_name, :prefix) ORDER BY 1, 2"
)


def require_none(database: Database) -> None:
    """Check that no API, dispatcher or run of a worker is connected to the ledger.

    A process that holds no connection is not seen: an idle worker, which reads its keys at each
    run, or an API that was not called since the database was started again.

    Raises:
        ConfigurationError: some are; the message says which, and where they connect from. Or a
            pooler is in between, whose connections have the name of whoever used them last.
    """
    with database.transaction() as session:
        if is_pooled(session.connection()):
            raise ConfigurationError(
                "a connection pooler hides which processes run: for this command, let "
                "EXPUNGE_DATABASE_URL lead to PostgreSQL itself"
            )
        found = session.execute(_CONNECTED, {"prefix": PROCESSES}).all()
    if found:
        running = ", ".join(f"{name.removeprefix(PROCESSES)} ({place})" for name, place in found)
        raise ConfigurationError(f"the service runs: {running}; stop it on every machine first")

"""What the service's role may do: read and add rows, change what changes, and delete what passes.

It removes no row that the log tells of, and the trigger ``append_only`` says which tables it only
adds to; it defines nothing, and stores nothing outside of tables. Granted anew after every
migration, in the same transaction, so that new tables are covered and nothing is ever granted too
much in between.
"""

from sqlalchemy import Connection, text

PASSING = (
    *("outbox", "member_trainings", "model_counts"),
    *("idempotency_keys", "callback_events", "feature_shards"),
)
"""The tables whose rows go when they have served."""

_APPEND_ONLY = text(
    "SELECT relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
    " WHERE tgname = 'append_only' AND relnamespace = current_schema()::regnamespace"
)
# Bytes that no table refers to: neither fsck nor erasing would find them.
_LARGE_OBJECTS = text(
    """
    SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure) FROM pg_proc
    WHERE pronamespace = 'pg_catalog'::regnamespace
    AND (proname LIKE 'lo\\_%' OR proname IN ('loread', 'lowrite'))
    AND pg_has_role(proowner, 'USAGE')
    """
)


def grant(connection: Connection, role: str) -> None:
    """Replace all of a role's rights to the present schema's tables.

    Large objects belong to PostgreSQL's superuser, who alone can take them from everybody.
    """
    quote = connection.dialect.identifier_preparer.quote_identifier
    to = quote(role)
    schema = quote(str(connection.scalar(text("SELECT current_schema()"))))
    database = quote(str(connection.scalar(text("SELECT current_database()"))))
    for statement in (
        f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC",
        f"REVOKE CREATE, TEMPORARY ON DATABASE {database} FROM {to}",
        f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC",
        f"REVOKE ALL ON SCHEMA {schema} FROM {to}",
        f"GRANT USAGE ON SCHEMA {schema} TO {to}",
        f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {to}",
        f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO {to}",
        *(f"GRANT DELETE ON {schema}.{table} TO {to}" for table in _present(connection)),
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {to}",
        f"REVOKE INSERT, UPDATE ON {schema}.alembic_version FROM {to}",
    ):
        connection.execute(text(statement))
    for table in connection.scalars(_APPEND_ONLY).all():
        connection.execute(text(f"REVOKE UPDATE ON {schema}.{quote(table)} FROM {to}"))
    for revocation in connection.scalars(_LARGE_OBJECTS).all():
        connection.execute(text(revocation))


def _present(connection: Connection) -> list[str]:
    """Return those passing tables that exist: a downgrade leaves none."""
    there = "SELECT to_regclass(:table) IS NOT NULL"
    return [table for table in PASSING if connection.scalar(text(there), {"table": table})]

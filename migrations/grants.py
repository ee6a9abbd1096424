"""What the service's role may do: everything with rows, but only add to what is append-only.

The trigger ``append_only`` says which tables are. Granted anew after every migration, in the same
transaction, so that new tables are covered and nothing is ever granted too much in between.
"""

from sqlalchemy import Connection, text


def grant(connection: Connection, role: str) -> None:
    """Replace all of a role's rights to the present schema's tables."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    to = quote(role)
    schema = quote(str(connection.scalar(text("SELECT current_schema()"))))
    for statement in (
        f"GRANT USAGE ON SCHEMA {schema} TO {to}",
        f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {to}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {to}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {to}",
        f"REVOKE INSERT, UPDATE, DELETE ON {schema}.alembic_version FROM {to}",
    ):
        connection.execute(text(statement))
    append_only = text(
        "SELECT relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
        " WHERE tgname = 'append_only' AND relnamespace = current_schema()::regnamespace"
    )
    for table in connection.scalars(append_only).all():
        connection.execute(text(f"REVOKE UPDATE, DELETE ON {schema}.{quote(table)} FROM {to}"))

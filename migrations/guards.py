"""Triggers that refuse to change what was decided, whoever asks, and what the service may do.

A guard looks at a row as it was and as it is to be. It holds for sessions that replay changes, too;
fsck finds what gets round them.

The service's role removes no row that the log tells of, and the trigger ``append_only`` says which
tables it only adds to; it defines nothing, and stores nothing outside of tables. Granted anew after
every migration, in the same transaction, so that new tables are covered and nothing is ever granted
too much in between.
"""

from alembic import op
from sqlalchemy import Connection, text

APPEND_ONLY = (
    "log_entries",
    "tree_nodes",
    "log_checkpoints",
    "log_cosignatures",
    "certificates",
    "forget_request_records",
    "accounted_requests",
)

# What a row says from its beginning on.
FIXED = {
    "datasets": ("id", "name", "public"),
    "records": ("seq", "dataset_id"),
    "imports": ("id", "dataset_id", "url"),
    "forget_requests": (*("id", "dataset_id", "api_key_id", "record_count", "replacement_count"),),
    "obligations": ("id", "request_id", "model_id"),
    "models": (
        *("id", "name", "dataset_id", "architecture", "recipe", "weights_source", "split_salt"),
    ),
    "runs": ("id", "model_id", "kind"),
    "versions": (
        *("id", "model_id", "run_id", "number", "blob_id", "sha256"),
        *("tensors_sha256", "size_bytes", "since_version"),
        *("trained_through", "trained_after_epoch", "withheld"),
    ),
    "placements": ("id", "model_id", "target"),
    "copies": ("id", "placement_id", "version_id"),
    "derivatives": ("id", "version_id", "name", "contact"),
    "api_keys": ("id", "key_hash", "scopes"),
    "backbones": (
        *("id", "name", "architecture", "input_shape", "classes", "layers", "features", "source"),
    ),
}

_ENDED = (
    "o.archived_at IS NOT NULL AND n.archived_at IS DISTINCT FROM o.archived_at"
    " OR o.deleted_at IS NOT NULL AND n.deleted_at IS DISTINCT FROM o.deleted_at"
)
_COLUMNS = "jsonb_path_query_array({}.schema, '$.columns.keyvalue().key')"
# What must not become of a row; o is how it was, n how it is to be.
FORBIDDEN = {
    "datasets": f"n.forget_epoch < o.forget_epoch OR {_ENDED}"
    # A dataset may be altered, and keeps its columns and where it has ids.
    f" OR NOT {_COLUMNS.format('n')} @> {_COLUMNS.format('o')}"
    " OR n.schema - 'columns' <> o.schema - 'columns'",
    "models": _ENDED,
    "backbones": _ENDED,
    "records": "o.forgotten_epoch IS NOT NULL AND n.forgotten_epoch IS DISTINCT FROM"
    " o.forgotten_epoch OR o.erased_at IS NOT NULL AND n.erased_at IS DISTINCT FROM o.erased_at"
    # Of one that is erased they may be destroyed, for good.
    " OR (n.record_key, n.subject_key, n.sides) IS DISTINCT FROM"
    " (o.record_key, o.subject_key, o.sides)"
    " AND (o.erased_at IS NULL OR o.record_key IS NULL OR n.record_key IS NOT NULL)",
    "imports": "o.state = 'completed' AND n.state <> o.state"
    " OR n.fencing_token < o.fencing_token OR n.added < o.added",
    "forget_requests": (
        "n.state <> o.state AND (o.state IN ('completed', 'cancelled')"
        " OR (o.state = 'certified') <> (n.state = 'completed')"
        " OR n.state = 'cancelled' AND o.state <> 'accepted'"
        # Only one that a person has still to decide on is refused, or was.
        " OR (o.state = 'refused') <> (n.state = 'received')"
        " OR n.state = 'refused' AND o.state <> 'received'"
        " OR o.state = 'received' AND n.state NOT IN ('accepted', 'refused'))"
        " OR o.forget_epoch IS NOT NULL AND n.forget_epoch IS DISTINCT FROM o.forget_epoch"
        " OR o.extension_reason IS NOT NULL AND (n.due_at IS DISTINCT FROM o.due_at"
        " OR n.extension_reason IS DISTINCT FROM o.extension_reason AND n.salt IS NOT NULL)"
        # By these a call is recognised as repeated, and answered as the first was: until its
        # evidence is destroyed, which an open one's never is.
        " OR (n.external_key, n.idempotency_key, n.request_digest, n.salt) IS DISTINCT FROM"
        " (o.external_key, o.idempotency_key, o.request_digest, o.salt) AND (n.salt IS NOT NULL"
        " OR o.completed_at IS NULL AND o.state <> 'refused')"
    ),
    "obligations": "o.state IN ('certified', 'cancelled') AND n.state <> o.state"
    " OR o.certificate_id <> n.certificate_id"
    " OR n.basis <> o.basis AND (o.state = 'certified' OR n.state <> 'certified')",
    "runs": "o.state IN ('published', 'failed', 'cancelled') AND n.state <> o.state"
    " OR n.fencing_token < o.fencing_token",
    "versions": "n.state <> o.state AND (o.state = 'shredded'"
    " OR (o.state = 'retired') <> (n.state = 'shredded'))"
    # The head covers more with another certificate, and never less.
    " OR n.covers_epoch < o.covers_epoch"
    " OR (n.covers_epoch <> o.covers_epoch) <> (n.certificate_id <> o.certificate_id)"
    " OR n.covers_epoch <> o.covers_epoch AND o.state <> 'certified'"
    " OR n.provenance IS DISTINCT FROM o.provenance"
    # Statistics may be lost, and no others take their place.
    " OR n.statistics_blob_id <> coalesce(o.statistics_blob_id, '')",
    "copies": "o.removed_at IS NOT NULL AND n.removed_at IS DISTINCT FROM o.removed_at",
    "derivatives": "o.acknowledged_at IS NOT NULL AND (n.acknowledged_at, n.answer)"
    " IS DISTINCT FROM (o.acknowledged_at, o.answer)",
    "api_keys": "o.revoked_at IS NOT NULL AND n.revoked_at IS DISTINCT FROM o.revoked_at",
}
_MOST_OFF_S = 600

# PostgreSQL keeps values of columns for its planner. Of what is destroyed with a request's
# evidence, or may name a person, it needs none but those of keys that many are looked up by.
UNSAMPLED = {
    "idempotency_keys": ("key_digest", "request_digest", "answer"),
    "subject_requests": ("subject_request_id", "request_digest", "salt"),
    "forget_requests": ("request_digest", "salt", "explanation", "extension_reason"),
    "callback_endpoints": ("url", "url_digest"),
    "callback_events": ("facts",),
}
SAMPLED = {
    "records": ("record_key", "subject_key"),
    "forget_requests": ("external_key", "idempotency_key"),
}


def make_append_only() -> None:
    """Refuse UPDATE, DELETE and TRUNCATE on tables that only grow."""
    op.execute(
        """
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION '% is append-only', TG_TABLE_NAME
                USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        # Also for sessions that replay changes, which ordinary triggers let pass.
        op.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER append_only")


def guard_ledger() -> None:
    """Refuse to repoint what is owed, to take back what is settled, and to un-forget."""
    op.execute(
        """
        CREATE FUNCTION refuse_rewriting() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'what % say is settled', TG_TABLE_NAME
                USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    guard(
        "signing_keys",
        "n.id <> o.id OR n.pem <> o.pem OR n.valid_from IS DISTINCT FROM o.valid_from"
        " OR o.valid_until IS NOT NULL AND (n.valid_until, n.compromised_since)"
        " IS DISTINCT FROM (o.valid_until, o.compromised_since)",
    )
    guard(
        "subject_requests",
        "o.status IS NOT NULL AND (n.id, n.api_key_id, n.regulation, n.submitted_at,"
        " n.received_at) IS DISTINCT FROM (o.id, o.api_key_id, o.regulation, o.submitted_at,"
        " o.received_at) OR o.status IS NOT NULL AND (n.subject_request_id, n.request_digest,"
        " n.salt) IS DISTINCT FROM (o.subject_request_id, o.request_digest, o.salt)"
        " AND (n.salt IS NOT NULL OR o.status NOT IN ('completed', 'cancelled'))"
        " OR n.due_at < o.due_at",
    )
    # Verifiers believe an entry's time: a key that has ended must not be helped by an older one.
    # Postgres refuses to read some escapes that JSON may have; none is needed to spell a time.
    readable = "regexp_replace(NEW.body, '\\\\u[0-9a-fA-F]{4}', 'n', 'g')::json"
    recorded_at = f"CAST({readable}->>'recorded_at' AS timestamptz)"
    op.execute(
        "CREATE TRIGGER guard BEFORE INSERT ON log_entries FOR EACH ROW WHEN (coalesce(abs("
        f"extract(epoch FROM clock_timestamp() - {recorded_at})) > {_MOST_OFF_S}, true))"
        " EXECUTE FUNCTION refuse_rewriting()"
    )
    op.execute("ALTER TABLE log_entries ENABLE ALWAYS TRIGGER guard")
    for table, columns in FIXED.items():
        fixed = " OR ".join(f"n.{name} IS DISTINCT FROM o.{name}" for name in columns)
        guard(table, f"{FORBIDDEN[table]} OR {fixed}" if table in FORBIDDEN else fixed)


def limit_samples() -> None:
    """Keep what is destroyed out of the planner's samples.

    ``sample_keys``, as the owner, samples keys anew once one of the samples is gone.
    """
    for table, columns in UNSAMPLED.items():
        off = ", ".join(f"ALTER COLUMN {name} SET STATISTICS 0" for name in columns)
        op.execute(f"ALTER TABLE {table} {off}")
    anew = "".join(
        f"""
            IF EXISTS (
                SELECT FROM pg_stats,
                unnest(most_common_vals::text::bytea[] || histogram_bounds::text::bytea[]) AS key
                WHERE schemaname = current_schema() AND tablename = '{table}'
                AND attname IN ('{one}', '{other}')
                AND NOT EXISTS (SELECT FROM {table} WHERE {one} = key)
                AND NOT EXISTS (SELECT FROM {table} WHERE {other} = key)
            ) THEN
                ANALYZE {table} ({one}, {other});
            END IF;
        """  # noqa: S608 - the names are this file's
        for table, (one, other) in SAMPLED.items()
    )
    op.execute(
        "CREATE FUNCTION sample_keys() RETURNS void LANGUAGE plpgsql SECURITY DEFINER"
        f" SET search_path FROM CURRENT AS $$ BEGIN {anew} END $$"
    )


def guard(table: str, forbidden: str) -> None:
    """Refuse changes of rows; ``forbidden`` tells which, with o for the old and n for the new."""
    condition = forbidden.replace("o.", "OLD.").replace("n.", "NEW.")
    op.execute(
        f"CREATE TRIGGER guard BEFORE UPDATE ON {table} FOR EACH ROW WHEN ({condition})"
        " EXECUTE FUNCTION refuse_rewriting()"
    )
    op.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER guard")


PASSING = (
    *("outbox", "member_trainings", "model_counts", "lineage_records"),
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

"""Initial schema: its tables are made in migrations/schema, their triggers in migrations/guards.py.

Revision ID: 0001
Revises:
"""

from alembic import op

from migrations import guards
from migrations.schema import ledger, registry

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    ledger.create_access()
    ledger.create_log()
    registry.create_datasets()
    registry.create_models()
    ledger.create_requests()
    ledger.create_callbacks()
    ledger.create_publishing()
    guards.make_append_only()
    guards.guard_ledger()
    guards.limit_samples()


def downgrade() -> None:
    op.execute("DROP FUNCTION refuse_change, refuse_rewriting, sample_keys CASCADE")
    # In one statement, because models, versions and certificates refer to each other.
    op.execute(
        """
        DROP TABLE
            api_keys, idempotency_keys,
            log_entries, tree_nodes, log_checkpoints, log_cosignatures, signing_keys,
            blobs, datasets, shards, records, imports, backbones, feature_shards,
            models, model_counts, lineage_records, runs, member_trainings, versions, certificates,
            subject_requests, forget_requests, forget_request_records, accounted_requests,
            obligations, outbox,
            derivatives, callback_endpoints, callback_events, callback_secrets,
            placements, copies
        """
    )

"""Whatever is changed in the ledger behind the log's back is named by ``fsck``.

Each change is made by a superuser who has lifted every trigger and constraint, looked at, and
undone. Those that no part of the service makes are refused to the service's role, and to a
superuser who lifts nothing.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import ARRAY, Column, Connection, Engine, select, text
from sqlalchemy.exc import DBAPIError

from app.access import api_keys
from app.delivery.callbacks import keys as callback_keys
from app.delivery.derivatives import DerivativeRow
from app.delivery.publishing.tables import CopyRow, PlacementRow
from app.domain.architectures import ArchitectureSpec
from app.domain.states import RunState, Scope
from app.evidence import log
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import signing_keys
from app.ledger.models import policies
from app.ledger.tables import ForgetRequestRow
from app.operations.fsck import check_rows
from app.operations.schema import all_tables, logged_tables
from app.registry import backbones
from app.registry.backbones import BackboneDefinition
from app.registry.datasets.tables import ImportRow
from app.registry.tables import VersionRow
from app.services import Services
from migrations.guards import FIXED
from tests.integration.app.ledger.subjects.test_requests import submit
from tests.support.emptying import unguarded
from tests.support.exact_heads import carry_out, head_of
from tests.support.logbook import bodies, faults, forging
from tests.support.workshop import DATASET, Workshop

_CHANGED = {
    str: "coalesce({0}, '') || 'x'",
    int: "coalesce({0}, 0) + 1",
    float: "coalesce({0}, 0) + 1",
    bool: "NOT coalesce({0}, false)",
    bytes: "sha256(coalesce({0}, ''))",
    dict: "jsonb_build_object('was', {0})",
    list: "array_append({0}, 'x')",
}
# The service does neither with an entry nor without one.
REFUSED = {
    "un-forget everybody": "UPDATE records SET forgotten_epoch = NULL, erased_at = NULL, shard_id ="
    " (SELECT id FROM shards LIMIT 1) WHERE forgotten_epoch IS NOT NULL",
    "un-forget one who is still stored": "UPDATE records SET forgotten_epoch = NULL"
    " WHERE forgotten_epoch = (SELECT forget_epoch FROM forget_requests WHERE id = :open)",
    "forget later than it was": "UPDATE records SET forgotten_epoch = forgotten_epoch + 1"
    " WHERE forgotten_epoch = 1",
    "say that an erased record is stored": "UPDATE records SET erased_at = NULL, shard_id ="
    " (SELECT id FROM shards LIMIT 1)"
    " WHERE seq = (SELECT min(seq) FROM records WHERE erased_at IS NOT NULL)",
    "let a forgotten record come back under its id": "UPDATE records"
    " SET record_key = sha256(record_key) WHERE forgotten_epoch IS NOT NULL",
    "give a forgotten record to another person": "UPDATE records"
    " SET subject_key = sha256(subject_key) WHERE forgotten_epoch IS NOT NULL",
    "remove a record": "DELETE FROM records WHERE seq = (SELECT max(seq) FROM records"
    " WHERE forgotten_epoch IS NULL)",
    "move records into another dataset": "UPDATE records SET dataset_id = 'ds_other'"
    " WHERE forgotten_epoch IS NULL",
    "remove whom a request names": "DELETE FROM forget_request_records WHERE request_id = :open",
    "repoint whom a request names": "UPDATE forget_request_records SET record_seq ="
    " (SELECT max(seq) FROM records) WHERE request_id = :open",
    "change a commitment": "UPDATE forget_request_records SET commitment = sha256(commitment)"
    " WHERE request_id = :open",
    "open a settled obligation": "UPDATE obligations SET state = 'open', certificate_id = NULL"
    " WHERE request_id = :done",
    "give an obligation another certificate": "UPDATE obligations"
    " SET certificate_id = 'cert_other' WHERE request_id = :done",
    "cancel what was certified": "UPDATE obligations SET state = 'cancelled',"
    " certificate_id = NULL WHERE request_id = :done",
    "change why an obligation ended": "UPDATE obligations SET basis = 'excluded_from_training'"
    " WHERE request_id = :done",
    "reopen a completed request": "UPDATE forget_requests SET state = 'accepted' WHERE id = :done",
    "complete a request that is not certified": "UPDATE forget_requests SET state = 'completed'"
    " WHERE id = :open",
    "take up a cancelled request": "UPDATE forget_requests SET state = 'certified'"
    " WHERE id = :cancelled",
    "count epochs backwards": "UPDATE datasets SET forget_epoch = 0",
    "lose a column": "UPDATE datasets SET schema = schema #- '{columns,label}'",
    "read ids elsewhere": """UPDATE datasets SET schema = schema || '{"record_id": "other"}'""",
    "let a version cover more": "UPDATE versions SET covers_epoch = covers_epoch + 100",
    "give a version another certificate": "UPDATE versions SET certificate_id ="
    " (SELECT min(certificate_id) FROM versions)",
    "serve a shredded version": "UPDATE versions SET state = 'retired' WHERE state = 'shredded'",
    "fail a published run": "UPDATE runs SET state = 'failed' WHERE state = 'published'",
    "queue a published run": "UPDATE runs SET state = 'queued' WHERE id ="
    " (SELECT min(id) FROM runs WHERE state = 'published')",
    "change what a team answered": "UPDATE derivatives SET answer = 'x'",
    "take a revocation back": "UPDATE api_keys SET revoked_at = NULL WHERE id = :other_key",
    "say that a stolen key was never compromised": "UPDATE signing_keys"
    " SET compromised_since = now() WHERE valid_until IS NOT NULL",
    "let a retired signing key sign longer": "UPDATE signing_keys"
    " SET valid_until = valid_until + interval '1 year' WHERE valid_until IS NOT NULL",
    "let a signing key have signed from earlier": "UPDATE signing_keys"
    " SET valid_from = valid_from - interval '1 year'",
    "exchange a signing key": "UPDATE signing_keys SET pem = replace(pem, 'BEGIN', 'BEGIM')",
    "promise a subject request an earlier answer": "UPDATE subject_requests"
    " SET due_at = due_at - interval '1 year'",
    "answer a new subject request as a repeated one": "UPDATE subject_requests"
    " SET subject_request_id = 'x', request_digest = 'x'",
}
# Parts of the service do this as well, but not without an entry.
FOUND = {
    "forget somebody for no request": "UPDATE records SET forgotten_epoch = 1000"
    " WHERE forgotten_epoch IS NULL",
    "erase somebody for no request": "UPDATE records SET forgotten_epoch = 1, shard_id = NULL,"
    " erased_at = now() WHERE forgotten_epoch IS NULL",
    "erase others than a request named": "UPDATE records SET erased_at = CASE WHEN"
    " erased_at IS NULL THEN now() END, shard_id = NULL WHERE seq IN"
    " ((SELECT min(seq) FROM records WHERE erased_at IS NOT NULL),"
    " (SELECT min(record_seq) FROM forget_request_records WHERE request_id = :open))",
    "add a record": "INSERT INTO records (dataset_id, record_key, shard_id)"
    " SELECT dataset_id, 'key', id FROM shards LIMIT 1",
}


@pytest.fixture
def ids(workshop: Workshop, services: Services) -> dict[str, str]:
    """A history with something of everything; the ids of what changes name."""
    for name in ("one", "two"):
        workshop.train(name)
    (ones, held_out), (twos, _) = workshop.split("one"), workshop.split("two")
    trained = sorted(set(ones) & set(twos))
    done = workshop.forget(trained[0])
    workshop.forget(held_out[0])
    workshop.dispatch()
    for name in ("one", "two"):
        workshop.work(name)
    workshop.push(4, first=100)
    workshop.forget("record-100")
    services.clean_up()
    failed = workshop.forget(trained[1])
    workshop.dispatch()
    for name in ("one", "two"):
        if workshop.active_run(name):
            held = workshop.begun(name)
            workshop.give_up(held)
    with workshop.transaction() as session:
        services.forget_requests.retry(session, failed)
        backbones.define_backbone(
            session,
            BackboneDefinition("bb", ArchitectureSpec("logistic"), (2,), 2, "somewhere"),
        )
        backbones.upload_weights(session, services.blobs, "bb", b"weights")
    policies.change_policy(services.database, "two", {"window_s": 7.0})
    opened, cancelled = workshop.forget(trained[2]), workshop.forget(trained[3])
    submit(workshop)
    with workshop.transaction() as session:
        services.forget_requests.cancel(session, cancelled)
        other_key = api_keys.create_key(session, name="x", scopes=[Scope.FORGET_READ])[0].id
        for _ in range(2):
            callback_keys.rotate(session, services.callbacks.keys, other_key)
        api_keys.revoke(session, other_key)
    old, new = services.signer, StatementSigner(Ed25519PrivateKey.generate())
    with workshop.transaction() as session:
        log.checkpoint_at_commit(session, old)
    with workshop.transaction() as session:
        signing_keys.rotate(session, old=old, new=new)
    assert not any(b'"kind":"rows.changed"' in body for body in bodies(services))
    with workshop.transaction() as session:
        version = session.scalars(select(VersionRow)).first()
        dataset = session.get_one(ForgetRequestRow, done).dataset_id
        session.add(ImportRow(id="imp_1", dataset_id=dataset, url="s3://b/", state="queued"))
        session.add(PlacementRow(id="pl_1", model_id=version.model_id, target="t", is_wanted=True))
        session.flush()
        session.add(
            DerivativeRow(
                id="der_1",
                version_id=version.id,
                name="bot",
                contact=b"encrypted",
                acknowledged_at=version.created_at,
                answer="deleted",
            )
        )
        session.add(CopyRow(id="copy_1", placement_id="pl_1", version_id=version.id))
    assert faults(services) == []
    assert {run.state for run in workshop.runs()} >= {RunState.PUBLISHED, RunState.FAILED}
    assert workshop.request(done).state == "completed"
    return {"open": opened, "cancelled": cancelled, "done": done, "other_key": other_key}


@pytest.fixture
def lifted(ids: dict[str, str], app_database: Engine) -> Iterator[Connection]:
    """A transaction of a superuser without triggers or constraints, which is undone."""
    with app_database.connect() as connection, unguarded(connection):
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        constraints = connection.execute(
            text(
                "SELECT conrelid::regclass, conname FROM pg_constraint WHERE contype IN ('c', 'u')"
                " AND connamespace = 'public'::regnamespace"
            )
        )
        for table, name in constraints.all():
            connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {name}"))
        unique = text(
            "SELECT indexrelid::regclass FROM pg_index JOIN pg_class ON pg_class.oid = indrelid"
            " WHERE indisunique AND NOT indisprimary AND relnamespace = 'public'::regnamespace"
        )
        for index in connection.scalars(unique).all():
            connection.execute(text(f"DROP INDEX {index}"))
        yield connection
        connection.rollback()


def _named(connection: Connection, change: str, ids: dict[str, str] | None = None) -> set[str]:
    """Make a change, return what is found, and undo it."""
    attempt = connection.begin_nested()
    used = {name: value for name, value in (ids or {}).items() if f":{name}" in change}
    assert connection.execute(text(change), used).rowcount > 0, change
    found: list[str] = []
    check_rows(connection, lambda where, _: found.append(where))
    attempt.rollback()
    return set(found)


def _other(column: Column) -> str:
    if column.type.python_type.__name__ == "datetime":
        return f"coalesce(\"{column.name}\", now()) + interval '1 microsecond'"
    kind = dict if column.type.__visit_name__ == "JSONB" else column.type.python_type
    return _CHANGED[list if isinstance(column.type, ARRAY) else kind].format(f'"{column.name}"')


def test_every_cell_of_every_logged_table_is_digested_or_left_out(lifted: Connection) -> None:
    wrong = []
    for table in logged_tables():
        name, (key,) = table.__tablename__, table.__table__.primary_key
        row = lifted.scalar(text(f"SELECT min({key.name}) FROM {name}"))
        assert table.__left_out__ < set(table.__table__.columns.keys()) - {key.name}
        for column in table.__table__.columns:
            change = f'UPDATE {name} SET "{column.name}" = {_other(column)}'
            expected = {f"{name} {row}"} | ({f"{name} {row}x"} if column is key else set())
            if column.name in table.__left_out__:
                expected = set()
            found = _named(lifted, f"{change} WHERE {key.name} = '{row}'")
            if found - {f"forget_request_records {row}"} != expected:  # its salt is in their digest
                wrong.append((name, column.name))
    assert wrong == []


def test_every_missing_and_every_added_row_is_named(lifted: Connection) -> None:
    for table in logged_tables():
        name, (key,) = table.__tablename__, table.__table__.primary_key
        row = lifted.scalar(text(f"SELECT max({key.name}) FROM {name}"))
        mine = f"WHERE {key.name} = '{row}'"
        missed = _named(lifted, f"DELETE FROM {name} {mine}")
        assert missed - {f"forget_request_records {row}"} == {f"{name} {row}"}
        stray = f"jsonb_populate_record({name}, jsonb_build_object('{key.name}', 'stray'))"
        added = f"INSERT INTO {name} SELECT ({stray}).* FROM {name} {mine}"
        assert _named(lifted, added) == {f"{name} stray"}


def test_other_records_are_named(lifted: Connection, ids: dict[str, str]) -> None:
    assert [name for name, do in (REFUSED | FOUND).items() if not _named(lifted, do, ids)] == []


def test_every_table_is_logged_or_checked_otherwise() -> None:
    """Certified, counted anew (``fsck_lineages``), in the trees, compared as sets, or passing."""
    otherwise = {
        *("log_entries", "tree_nodes", "log_checkpoints", "log_cosignatures"),
        *(
            "accounted_requests",
            "model_counts",
            "lineage_records",
            "records",
            "forget_request_records",
        ),
        *("blobs", "shards", "feature_shards", "member_trainings", "outbox"),
        *("idempotency_keys", "callback_endpoints", "callback_events"),
    }
    logged = {table.__tablename__ for table in logged_tables()}
    assert logged | otherwise == set(all_tables().tables)
    assert not logged & otherwise


def test_a_process_that_does_nothing_else_knows_every_table() -> None:
    program = (
        "from app.operations.fsck import logged_tables\n"
        "print(*(table.__tablename__ for table in logged_tables()))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    known = {table.__tablename__ for table in logged_tables()}
    assert set(told.stdout.decode().split()) == known


def _is_refused(connection: Connection, change: str, ids: dict[str, str]) -> bool:
    used = {name: value for name, value in ids.items() if f":{name}" in change}
    try:
        assert connection.execute(text(change), used).rowcount > 0, change
    except DBAPIError as error:
        return getattr(error.orig, "sqlstate", None) == "42501"  # insufficient_privilege
    return False


def test_what_the_service_never_does_is_refused_to_it_and_to_a_superuser(
    ids: dict[str, str], services: Services, app_database: Engine
) -> None:
    tables = all_tables().tables
    fixed = [
        f'UPDATE {name} SET "{column}" = {_other(tables[name].columns[column])}'
        for name, columns in FIXED.items()
        for column in columns
        if column != "seq"  # only its sequence gives a number
    ]
    removed = [f"DELETE FROM {name}" for name in (*FIXED, "signing_keys", "subject_requests")]
    allowed = []
    for change in (*REFUSED.values(), *fixed, *removed):
        for engine in (services.database.engine, app_database):
            if engine is app_database and "DELETE" in change:
                continue  # the superuser deletes what he likes, and fsck tells
            with engine.connect() as connection:
                if not _is_refused(connection, change, ids):
                    allowed.append((change, engine.url.username))
                connection.rollback()
    assert allowed == []


ELSEWHERE = [
    "TRUNCATE records CASCADE",
    "TRUNCATE outbox",
    "SELECT lo_from_bytea(0, 'a record')",
    "SELECT lo_create(0)",
    "SELECT lo_creat(-1)",
    "CREATE TABLE anything (word text)",
    "CREATE SCHEMA anything",
    "ALTER TABLE records DISABLE TRIGGER forgotten",
    "DROP TRIGGER guard ON obligations",
    "CREATE OR REPLACE FUNCTION refuse_unforgetting() RETURNS trigger LANGUAGE plpgsql"
    " AS $$BEGIN RETURN NEW; END$$",
    "DELETE FROM blobs",
    "DELETE FROM shards",
]


def test_the_services_role_defines_nothing_and_stores_nothing_elsewhere(
    services: Services, subtests: pytest.Subtests
) -> None:
    for statement in ELSEWHERE:
        with (
            subtests.test(statement=statement),
            services.database.engine.connect() as connection,
        ):
            with pytest.raises(DBAPIError) as caught:
                connection.execute(text(statement))
            assert caught.value.orig.sqlstate == "42501"


def test_what_a_request_marked_stays_forgotten(workshop: Workshop, services: Services) -> None:
    workshop.forget("record-1")
    for value in ("NULL", "forgotten_epoch + 1"):
        with pytest.raises(DBAPIError, match="is settled"), workshop.transaction() as session:
            session.execute(
                text(f"UPDATE records SET forgotten_epoch = {value} WHERE forgotten_epoch = 1")
            )


def test_an_entry_about_rows_that_never_were_is_named_printably(
    services: Services, workshop: Workshop
) -> None:
    workshop.forged = True
    with workshop.transaction() as session:
        log.append(session, "request.accepted", rows={"forget_requests/fr_\x00\u2028": "00"})
    (fault,) = faults(services)
    assert fault.where.isprintable()
    assert fault.reason.endswith("it is missing")


def test_a_dataset_that_holds_nothing_has_no_fault(services: Services) -> None:
    workshop = Workshop(services)
    assert faults(services) == []
    with workshop.transaction() as session:
        assert session.scalar(text("SELECT name FROM datasets")) == DATASET


ENSEMBLE = ArchitectureSpec("ensemble", members=2, of=ArchitectureSpec("logistic"))
CHANGES = [
    "jsonb_set(members, '{0,trained_in}', '9')",
    "jsonb_set(members, '{1,sha256}', '\"00\"')",
    "members - 1",
    "NULL",
]


@pytest.mark.parametrize("change", CHANGES)
def test_other_members_than_the_certificate_s_are_found(
    workshop: Workshop, app_database: Engine, change: str
) -> None:
    workshop.forged = True
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    carry_out(workshop)
    learned, held_out = workshop.split()
    workshop.forget(learned[0])
    workshop.dispatch()
    carry_out(workshop)
    workshop.forget(held_out[0])
    assert faults(workshop.services) == []
    version = head_of(workshop)
    with forging(app_database) as connection:
        statement = text(f"UPDATE versions SET members = {change} WHERE id = :id")
        assert connection.execute(statement, {"id": version.id}).rowcount == 1
    assert [(fault.where, fault.reason) for fault in faults(workshop.services)] == [
        (f"certificate {version.certificate_id}", "its version names other members than it does"),
        (f"versions {version.id}", "it differs from what the log says"),
    ]

"""Whatever is changed in the ledger behind the log's back is named by ``fsck``.

Each change is made by a superuser who has lifted the triggers, looked at, and undone. Those that no
part of the service makes are refused to the service's role, and to a superuser who lifts nothing.
"""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from app.access import api_keys
from app.delivery.callbacks import signing_secrets
from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.scopes import Scope
from app.domain.states import RunState
from app.evidence import log
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import signing_keys
from app.ledger.models import policies
from app.ledger.tables import ForgetRequestRow
from app.operations import fsck
from app.registry.backbones import service
from app.registry.backbones.service import BackboneDefinition
from app.services import Services
from tests.integration.app.ledger.subjects.test_requests import submit
from tests.support.emptying import unguarded
from tests.support.logbook import faults
from tests.support.workshop import DATASET, Workshop

# What is refused, by name: the change, and what fsck says is wrong.
REFUSED = {
    "un-forget everybody": (
        "UPDATE records SET forgotten_epoch = NULL, erased_at = NULL, shard_id ="
        " (SELECT id FROM shards LIMIT 1) WHERE forgotten_epoch IS NOT NULL",
        "request",
    ),
    "un-forget one who is still stored": (
        "UPDATE records SET forgotten_epoch = NULL WHERE forgotten_epoch ="
        " (SELECT forget_epoch FROM forget_requests WHERE id = :open)",
        "request",
    ),
    "forget later than it was": (
        "UPDATE records SET forgotten_epoch = forgotten_epoch + 1 WHERE forgotten_epoch = 1",
        "request",
    ),
    "say that an erased record is stored": (
        "UPDATE records SET erased_at = NULL, shard_id = (SELECT id FROM shards LIMIT 1)"
        " WHERE seq = (SELECT min(seq) FROM records WHERE erased_at IS NOT NULL)",
        "request",
    ),
    "let a forgotten record come back under its id": (
        "UPDATE records SET record_key = sha256(record_key) WHERE forgotten_epoch IS NOT NULL",
        "request",
    ),
    "give a forgotten record to another person": (
        "UPDATE records SET subject_key = sha256(subject_key) WHERE forgotten_epoch IS NOT NULL",
        "request",
    ),
    "remove a record": (
        "DELETE FROM records WHERE seq = (SELECT max(seq) FROM records"
        " WHERE forgotten_epoch IS NULL)",
        "dataset",
    ),
    "move records into another dataset": (
        "UPDATE records SET dataset_id = 'ds_other' WHERE forgotten_epoch IS NULL",
        "dataset",
    ),
    "remove whom a request names": (
        "DELETE FROM forget_request_records WHERE request_id = :open",
        "request :open",
    ),
    "repoint whom a request names": (
        "UPDATE forget_request_records SET record_seq = (SELECT max(seq) FROM records)"
        " WHERE request_id = :open",
        "request :open",
    ),
    "change a commitment": (
        "UPDATE forget_request_records SET commitment = sha256(commitment)"
        " WHERE request_id = :open",
        "request :open",
    ),
    "repoint an obligation to another request": (
        "UPDATE obligations SET request_id = :bare WHERE request_id = :open",
        "obligation",
    ),
    "repoint an obligation to another model": (
        "UPDATE obligations SET model_id = model_id || '_other' WHERE request_id = :open",
        "obligation",
    ),
    "remove an obligation": ("DELETE FROM obligations WHERE request_id = :open", "obligation"),
    "open a settled obligation": (
        "UPDATE obligations SET state = 'open', certificate_id = NULL WHERE request_id = :done",
        "obligation",
    ),
    "give an obligation another certificate": (
        "UPDATE obligations SET certificate_id = 'cert_other' WHERE request_id = :done",
        "obligation",
    ),
    "cancel what was certified": (
        "UPDATE obligations SET state = 'cancelled', certificate_id = NULL"
        " WHERE request_id = :done",
        "obligation",
    ),
    "change why an obligation ended": (
        "UPDATE obligations SET basis = 'excluded_from_training' WHERE request_id = :done",
        "obligation",
    ),
    "remove a request": ("DELETE FROM forget_requests WHERE id = :open", "request :open"),
    "reopen a completed request": (
        "UPDATE forget_requests SET state = 'accepted' WHERE id = :done",
        "request :done",
    ),
    "complete a request that is not certified": (
        "UPDATE forget_requests SET state = 'completed' WHERE id = :open",
        "request :open",
    ),
    "take up a cancelled request": (
        "UPDATE forget_requests SET state = 'certified' WHERE id = :cancelled",
        "request :cancelled",
    ),
    "repoint a request to another dataset": (
        "UPDATE forget_requests SET dataset_id = 'ds_other' WHERE id = :open",
        "request :open",
    ),
    "give a request another epoch": (
        "UPDATE forget_requests SET forget_epoch = 1000 WHERE id = :open",
        "request :open",
    ),
    "say that a request named fewer": (
        "UPDATE forget_requests SET record_count = 0 WHERE id = :open",
        "request :open",
    ),
    "give a request to another caller": (
        "UPDATE forget_requests SET api_key_id = :other_key WHERE id = :open",
        "request :open",
    ),
    "count epochs backwards": ("UPDATE datasets SET forget_epoch = 0", "dataset"),
    "change a dataset's schema": (
        "UPDATE datasets SET schema = schema || '{\"classes\": 9}'",
        "dataset",
    ),
    "remove a dataset": ("DELETE FROM datasets", "dataset"),
    "change a version's digest": ("UPDATE versions SET sha256 = repeat('0', 64)", "version"),
    "serve other weights as a version": (
        "UPDATE versions SET blob_id = (SELECT max(blob_id) FROM versions)"
        " WHERE blob_id = (SELECT min(blob_id) FROM versions)",
        "version",
    ),
    "say that a version is larger": ("UPDATE versions SET size_bytes = size_bytes + 1", "version"),
    "let a version cover more": (
        "UPDATE versions SET covers_epoch = covers_epoch + 100",
        "version",
    ),
    "let a version have learned from other records": (
        "UPDATE versions SET trained_after_epoch = trained_after_epoch + 100",
        "version",
    ),
    "say that a version was never released": (
        "UPDATE versions SET withheld = NOT withheld",
        "version",
    ),
    "give a backbone another source": (
        "UPDATE backbones SET source = 'somewhere else'",
        "backbone",
    ),
    "give a version another certificate": (
        "UPDATE versions SET certificate_id = (SELECT min(certificate_id) FROM versions)",
        "version",
    ),
    "serve a shredded version": (
        "UPDATE versions SET state = 'retired' WHERE state = 'shredded'",
        "version",
    ),
    "remove a version": ("DELETE FROM versions WHERE state = 'shredded'", "version"),
    "change which records were held out": (
        "UPDATE models SET split_salt = sha256(split_salt)",
        "model",
    ),
    "repoint a model to another dataset": ("UPDATE models SET dataset_id = 'ds_other'", "model"),
    "remove a model": ("DELETE FROM models", "model"),
    "run for another model": ("UPDATE runs SET model_id = model_id || '_other'", "run"),
    "fail a published run": (
        "UPDATE runs SET state = 'failed' WHERE state = 'published'",
        "run",
    ),
    "queue a published run": (
        "UPDATE runs SET state = 'queued' WHERE id ="
        " (SELECT min(id) FROM runs WHERE state = 'published')",
        "run",
    ),
    "remove a run": ("DELETE FROM runs WHERE state = 'failed'", "run"),
    "use an API key's id with another secret": (
        "UPDATE api_keys SET key_hash = sha256(key_hash) WHERE id = :other_key",
        "API key :other_key",
    ),
    "give an API key more scopes": (
        "UPDATE api_keys SET scopes = '[\"admin\"]' WHERE id = :other_key",
        "API key :other_key",
    ),
    "take a revocation back": (
        "UPDATE api_keys SET revoked_at = NULL WHERE id = :other_key",
        "API key :other_key",
    ),
    "remove an API key": ("DELETE FROM api_keys WHERE id = :other_key", "API key :other_key"),
    "say that a stolen key was never compromised": (
        "UPDATE signing_keys SET compromised_since = now() WHERE valid_until IS NOT NULL",
        "signing key",
    ),
    "postpone what a subject request was promised": (
        "UPDATE subject_requests SET due_at = due_at + interval '1 year'",
        "subject request",
    ),
    "give a subject request to another caller": (
        "UPDATE subject_requests SET api_key_id = :other_key",
        "subject request",
    ),
    "exchange a signing key": (
        "UPDATE signing_keys SET pem = replace(pem, 'BEGIN', 'BEGIM')",
        "signing key",
    ),
    "let a retired signing key sign longer": (
        "UPDATE signing_keys SET valid_until = valid_until + interval '1 year'"
        " WHERE valid_until IS NOT NULL",
        "signing key",
    ),
    "let a retired signing key have signed from earlier": (
        "UPDATE signing_keys SET valid_from = valid_from - interval '1 year'",
        "signing key",
    ),
    "remove a retired signing key": (
        "DELETE FROM signing_keys WHERE valid_until IS NOT NULL",
        "signing key",
    ),
    "remove a backbone": ("DELETE FROM backbones", "backbone"),
    "remove a subject request": (
        "UPDATE forget_requests SET subject_request_id = NULL;"
        "DELETE FROM callback_endpoints; DELETE FROM subject_requests",
        "subject request",
    ),
    "remove the newest checkpoint": (
        "DELETE FROM log_checkpoints WHERE size = (SELECT max(size) FROM log_checkpoints)",
        "checkpoint",
    ),
    "remove the oldest checkpoint": (
        "DELETE FROM log_checkpoints WHERE size = (SELECT min(size) FROM log_checkpoints)",
        "checkpoint",
    ),
    "remove a certificate": (
        "DELETE FROM certificates WHERE id = (SELECT min(id) FROM certificates)",
        "certificate",
    ),
    "chain certificates in another order": (
        "UPDATE certificates SET number = number + 100 WHERE number = 1",
        "certificate",
    ),
    "remove the newest entry": (
        "DELETE FROM log_entries WHERE index = (SELECT max(index) FROM log_entries)",
        "checkpoint",
    ),
}
# What is refused as well, though no entry tells of it.
RECOGNITION = {
    "answer a new request as a repeated one": (
        "UPDATE forget_requests SET external_key = 'x', request_digest = 'x' WHERE id = :open",
        "request :open",
    ),
    "answer a new subject request as a repeated one": (
        "UPDATE subject_requests SET subject_request_id = 'x', request_digest = 'x'",
        "subject request",
    ),
}
# What parts of the service do as well, but not without an entry.
FOUND = {
    "forget somebody for no request": (
        "UPDATE records SET forgotten_epoch = 1000 WHERE forgotten_epoch IS NULL",
        "records forgotten at",
    ),
    "erase somebody for no request": (
        "UPDATE records SET forgotten_epoch = 1, shard_id = NULL, erased_at = now()"
        " WHERE forgotten_epoch IS NULL",
        "dataset",
    ),
    "add a record": (
        "INSERT INTO records (dataset_id, record_key, shard_id)"
        " SELECT dataset_id, 'key', id FROM shards LIMIT 1",
        "dataset",
    ),
    "add a request": (
        "INSERT INTO forget_requests (id, dataset_id, api_key_id, request_digest, state,"
        " forget_epoch, record_count, received_at, due_at) SELECT 'fr_stray', dataset_id,"
        " api_key_id, request_digest, 'completed', 999, 0, now(), now()"
        " FROM forget_requests WHERE id = :open",
        "request fr_stray",
    ),
    "add an obligation": (
        "INSERT INTO obligations (id, request_id, model_id, state, basis) SELECT 'ob_stray',"
        " :bare, model_id, 'open', 'unlearned' FROM obligations WHERE request_id = :open"
        " LIMIT 1",
        "obligation ob_stray",
    ),
    "cancel an obligation": (
        "UPDATE obligations SET state = 'cancelled' WHERE request_id = :open",
        "obligation",
    ),
    "fail a request": ("UPDATE forget_requests SET state = 'failed' WHERE id = :open", "request"),
    "postpone a deadline": (
        "UPDATE forget_requests SET due_at = due_at + interval '1 year' WHERE id = :open",
        "request :open",
    ),
    "say that it was completed earlier": (
        "UPDATE forget_requests SET completed_at = completed_at - interval '1 day'",
        "request :done",
    ),
    "keep a warning back": (
        "UPDATE forget_requests SET overdue_noted_at = now() WHERE id = :open",
        "request :open",
    ),
    "archive a model without a word": ("UPDATE models SET archived_at = now()", "model"),
    "delete a model without a word": ("UPDATE models SET deleted_at = now()", "model"),
    "archive a dataset without a word": ("UPDATE datasets SET archived_at = now()", "dataset"),
    "archive a backbone without a word": ("UPDATE backbones SET archived_at = now()", "backbone"),
    "let a training have read fewer": (
        "UPDATE runs SET trained_through = 1 WHERE kind = 'train'",
        "run",
    ),
    "train a model on fewer": ("UPDATE models SET trained_through = 1", "model"),
    "train a model after more was forgotten": (
        "UPDATE models SET trained_after_epoch = trained_after_epoch + 100",
        "model",
    ),
    "promise less": (
        "UPDATE models SET policy = jsonb_set(policy, '{epsilon}', '1e9')",
        "model",
    ),
    "let a lineage remember otherwise": ("UPDATE models SET tracking = '{}'", "model"),
    "serve another version": (
        "UPDATE models SET head_version_id = (SELECT min(id) FROM versions)"
        " WHERE head_version_id IS NOT NULL",
        "model",
    ),
    "retire a version": (
        "UPDATE versions SET state = 'retired' WHERE state = 'certified'",
        "version",
    ),
    "let a run have seen less": (
        "UPDATE runs SET forget_epoch = forget_epoch + 1 WHERE forget_epoch IS NOT NULL",
        "run",
    ),
    "plan less noise": ("UPDATE runs SET plan = '{}' WHERE state = 'published'", "run"),
    "count attempts anew": ("UPDATE runs SET attempt = 0", "run"),
    "prolong an API key": (
        "UPDATE api_keys SET expires_at = now() + interval '1 year'",
        "API key",
    ),
    "add an API key": (
        "INSERT INTO api_keys (id, name, key_hash, scopes) VALUES ('key_stray', 'x', 'x', '[]')",
        "API key key_stray",
    ),
    "retire the signing key": (
        "UPDATE signing_keys SET valid_until = now() WHERE valid_until IS NULL",
        "signing key",
    ),
    "add a signing key": (
        "INSERT INTO signing_keys (id, pem, valid_from, valid_until) VALUES ('f', 'x', now(),"
        " now())",
        "signing key f",
    ),
    "train from other imported weights": (
        "UPDATE models SET imported_blob_id = (SELECT min(blob_id) FROM versions)",
        "model",
    ),
    "say that a backbone came from elsewhere": (
        "UPDATE backbones SET source = 'mine'",
        "backbone",
    ),
    "exchange a backbone's weights": (
        "UPDATE backbones SET blob_id = (SELECT min(blob_id) FROM versions)",
        "backbone",
    ),
    "change the size of a backbone's weights": (
        "UPDATE backbones SET size_bytes = size_bytes + 1",
        "backbone",
    ),
    "complete a subject request": (
        "UPDATE subject_requests SET status = 'completed'",
        "subject request",
    ),
    "go back to an old callback secret": (
        "UPDATE callback_secrets SET generation = 1",
        "callback secret",
    ),
}


@pytest.fixture
def ids(workshop: Workshop, services: Services) -> dict[str, str]:
    """A history with something of everything; the ids of what changes name."""
    for name in ("one", "two"):
        workshop.define(name)
        workshop.work(name)
    (ones, held_out), (twos, _) = workshop.split("one"), workshop.split("two")
    trained = sorted(set(ones) & set(twos))
    done = workshop.forget(trained[0])
    workshop.forget(held_out[0])
    workshop.dispatch()
    for name in ("one", "two"):
        workshop.work(name)
    workshop.push(4, first=100)
    bare = workshop.forget("record-100")
    services.clean_up()
    failed = workshop.forget(trained[1])
    workshop.dispatch()
    for name in ("one", "two"):
        if workshop.active_run(name):
            held = workshop.lease(name)
            workshop.begin(held)
            workshop.give_up(held)
    with workshop.transaction() as session:
        services.forget_requests.retry(session, failed)
        service.define_backbone(
            session,
            BackboneDefinition("bb", ArchitectureSpec("logistic"), (2,), 2, "somewhere"),
        )
        service.upload_weights(session, services.blobs, "bb", b"weights")
    policies.change_policy(services.database, "two", {"window_s": 7.0})
    opened, cancelled = workshop.forget(trained[2]), workshop.forget(trained[3])
    submit(workshop)
    with workshop.transaction() as session:
        services.forget_requests.cancel(session, cancelled, restore=True)
        other_key = api_keys.create_key(session, name="x", scopes=[Scope.FORGET_READ])[0].id
        for _ in range(2):
            signing_secrets.rotate(session, services.callbacks.keys, other_key)
        api_keys.revoke(session, other_key)
    old, new = services.signer, StatementSigner(Ed25519PrivateKey.generate())
    with workshop.transaction() as session:
        log.checkpoint_at_commit(session, old)
    with workshop.transaction() as session:
        signing_keys.rotate(session, old=old, new=new)
    assert faults(services) == []
    assert {run.state for run in workshop.runs()} >= {RunState.PUBLISHED, RunState.FAILED}
    assert workshop.request(done).state == "completed"
    requests = {"open": opened, "cancelled": cancelled, "done": done, "bare": bare}
    return {**requests, "other_key": other_key}


def _make(connection: Connection, change: str, ids: dict[str, str]) -> None:
    for statement in change.split(";"):
        used = {name: value for name, value in ids.items() if f":{name}" in statement}
        result = connection.execute(text(statement), used)
    assert result.rowcount > 0, change


def _is_refused(connection: Connection, change: str, ids: dict[str, str]) -> bool:
    try:
        _make(connection, change, ids)
    except DBAPIError as error:
        return getattr(error.orig, "sqlstate", None) == "42501"  # insufficient_privilege
    return False


def _named(connection: Connection, services: Services) -> list[str]:
    """Return what fsck names within a transaction that is still to be undone."""
    found: list[fsck.Fault] = []
    fsck._Check(connection, [services.signer.public_key], found.append).run(())
    return [fault.where for fault in found if "not signed by" not in fault.reason]


@pytest.mark.slow
def test_every_change_that_a_superuser_makes_is_named(
    ids: dict[str, str], services: Services, app_database: Engine
) -> None:
    missed = []
    for name, (change, culprit) in (REFUSED | FOUND).items():
        with app_database.connect() as connection, unguarded(connection):
            # Nor do foreign keys look at what such a session does.
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            _make(connection, change, ids)
            connection.execute(text("SET LOCAL session_replication_role = origin"))
            kind, _, key = culprit.partition(" :")
            wanted = f"{kind} {ids[key]}" if key else kind
            if not any(where.startswith(wanted) for where in _named(connection, services)):
                missed.append(name)
            connection.rollback()
    assert missed == []


def test_what_the_service_never_does_is_refused_to_it_and_to_a_superuser(
    ids: dict[str, str], services: Services, app_database: Engine
) -> None:
    allowed = []
    for name, (change, _) in (REFUSED | RECOGNITION).items():
        for engine in (services.database.engine, app_database):
            if engine is app_database and "DELETE" in change:
                continue  # the superuser deletes what he likes, and fsck tells
            with engine.connect() as connection:
                if not _is_refused(connection, change, ids):
                    allowed.append((name, engine.url.username))
                connection.rollback()
    assert allowed == []
    assert faults(services) == []


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


def test_a_cancelled_requests_records_can_be_restored_and_no_others(
    workshop: Workshop, services: Services
) -> None:
    workshop.define()
    workshop.work()
    (one, other, *_), _ = workshop.split()
    cancelled, opened = workshop.forget(one), workshop.forget(other)
    with workshop.transaction() as session:
        services.forget_requests.cancel(session, cancelled, restore=True)
    with workshop.transaction() as session:
        epoch = session.get_one(ForgetRequestRow, opened).forget_epoch
    for value in ("NULL", "forgotten_epoch + 1"):
        with pytest.raises(DBAPIError, match="stays forgotten"), workshop.transaction() as session:
            session.execute(
                text(f"UPDATE records SET forgotten_epoch = {value} WHERE forgotten_epoch = :e"),
                {"e": epoch},
            )


def test_an_entry_that_contradicts_those_before_it_is_named(
    workshop: Workshop, services: Services
) -> None:
    request_id = workshop.forget("record-1")
    services.clean_up()
    workshop.forged = True
    for kind in ("request.accepted", "request.nonsense"):
        with workshop.transaction() as session:
            log.append(session, kind, request=request_id)
            log.append(session, "request.certified", request="fr_never\x00\u2028")
    found = [(fault.where, fault.reason) for fault in faults(services)]
    assert (f"request {request_id}", "after its end") in [
        (where, reason.split("comes ")[-1]) for where, reason in found
    ]
    assert any(reason.endswith("it is missing") for _, reason in found)
    assert all(where.isprintable() for where, _ in found)


def test_a_dataset_that_holds_nothing_has_no_fault(services: Services) -> None:
    workshop = Workshop(services)
    assert faults(services) == []
    with workshop.transaction() as session:
        assert session.scalar(text("SELECT name FROM datasets")) == DATASET

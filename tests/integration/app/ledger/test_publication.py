"""Publication: version, certificate, obligations and head together or not at all."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, func, select, text
from sqlalchemy.exc import IntegrityError

from app.domain.errors import TargetNotMetError
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.tables import CertificateRow
from app.ledger import repository
from app.ledger.certificates import issuing
from app.ledger.new_requests import NewForgetRequest
from app.ledger.tables import ForgottenRecordRow
from app.operations.schema import all_tables
from app.registry.tables import VersionRow
from app.services import Services
from app.storage.tables import BlobRow
from tests.support import trees
from tests.support.emptying import empty, unguarded
from tests.support.weights import weights_of_version
from tests.support.workshop import DATASET, Workshop, record_ids


def _predicate(workshop: Workshop, certificate_id: str) -> dict:
    with workshop.transaction() as session:
        envelope = issuing.certificate(session, certificate_id).envelope
    return statement_of(envelope)["predicate"]


def _count(workshop: Workshop, table: type) -> int:
    with workshop.transaction() as session:
        return session.scalar(select(func.count()).select_from(table))


def test_publishing_twice_with_the_same_token_returns_the_same_version(
    workshop: Workshop,
) -> None:
    workshop.define()
    held = workshop.begun()
    result = workshop.result(held)

    first, again = workshop.publish(held, result), workshop.publish(held, result)

    assert again.id == first.id
    assert _count(workshop, VersionRow) == _count(workshop, CertificateRow) == 1


@contextmanager
def _full(owner: Engine, table: str) -> Iterator[None]:
    """Let every INSERT into a table fail."""
    body = "$$BEGIN RAISE EXCEPTION 'disk full'; END$$"
    with owner.begin() as connection:
        connection.execute(
            text(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS {body}")
        )
        connection.execute(
            text(f"CREATE TRIGGER refuse BEFORE INSERT ON {table} EXECUTE FUNCTION refuse()")
        )
    try:
        yield
    finally:
        with owner.begin() as connection:
            connection.execute(text("DROP FUNCTION refuse CASCADE"))


@pytest.mark.parametrize(
    "table", ["certificates", "versions", "log_entries", "tree_nodes", "log_checkpoints"]
)
def test_a_failure_while_publishing_leaves_nothing_published(
    workshop: Workshop, app_database: Engine, table: str
) -> None:
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    result = workshop.result(held)

    with _full(app_database, table), pytest.raises(Exception, match="disk full"):
        workshop.publish(held, result)

    assert _count(workshop, VersionRow) == _count(workshop, CertificateRow) == 1
    assert workshop.run(held.run_id).state == "running"
    assert workshop.request(request_id).state == "unlearning"
    with workshop.transaction() as session:
        head = session.get_one(VersionRow, workshop.model().head_version_id)
        assert (head.number, head.state) == (1, "certified")
        assert session.get_one(BlobRow, head.blob_id).state == "live"
        assert session.get_one(BlobRow, result.weights.id).state == "pending"
    assert workshop.publish(held, result).number == 2


@pytest.mark.parametrize(
    ("table", "column"), [("versions", "certificate_id"), ("certificates", "version_id")]
)
def test_neither_a_version_nor_a_certificate_can_stand_alone(
    workshop: Workshop, app_database: Engine, table: str, column: str
) -> None:
    version = workshop.train()
    row = version.id if table == "versions" else version.certificate_id

    def point_to_nothing() -> None:
        with app_database.begin() as connection, unguarded(connection):
            statement = f"UPDATE {table} SET {column} = 'nothing' WHERE id = :id"
            connection.execute(text(statement), {"id": row})
            connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))

    with pytest.raises(IntegrityError):
        point_to_nothing()


def test_a_version_that_claims_noise_differs_from_its_predecessor(workshop: Workshop) -> None:
    first = workshop.train()
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    result = workshop.result(held)  # another file, as it says which version it is
    assert result.weights.sha256 != first.sha256

    with pytest.raises(TargetNotMetError, match="nothing was added"):
        workshop.publish(held, replace(result, tensors_sha256=first.tensors_sha256))


def test_the_replaced_version_is_retired_and_its_bytes_are_shredded(workshop: Workshop) -> None:
    first = workshop.train()
    workshop.forget(workshop.split()[0][0])
    second = workshop.unlearn()

    with workshop.transaction() as session:
        assert session.get_one(VersionRow, first.id).state == "retired"
    workshop.services.clean_up()
    with workshop.transaction() as session:
        assert session.get_one(VersionRow, first.id).state == "shredded"
        assert session.get_one(BlobRow, first.blob_id).sha256 is None
    with pytest.raises(Exception, match="shredded"):
        workshop.services.blobs.read(first.blob_id)
    assert workshop.services.blobs.read(second.blob_id) == weights_of_version(2)


def test_a_version_shredded_before_a_crash_is_noted_later(workshop: Workshop) -> None:
    first = workshop.train()
    workshop.forget(workshop.split()[0][0])
    workshop.unlearn()
    workshop.services.blobs.sweep()  # and here the process dies

    workshop.services.clean_up()

    with workshop.transaction() as session:
        assert session.get_one(VersionRow, first.id).state == "shredded"


def test_a_result_without_noise_is_published_only_where_the_policy_says_so(
    workshop: Workshop,
) -> None:
    workshop.define("open", first_release="as_trained")
    workshop.define("sealed")
    openly, sealed = workshop.lease("open"), workshop.lease("sealed")
    workshop.begin(openly)
    workshop.begin(sealed)

    with pytest.raises(TargetNotMetError):
        workshop.publish(sealed, workshop.result(openly))
    with pytest.raises(TargetNotMetError):
        workshop.publish(openly, workshop.result(sealed))

    version = workshop.publish(openly)
    assert _predicate(workshop, version.certificate_id)["guarantee"]["kind"] == "none"


def test_steps_that_miss_the_target_are_not_published(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.begun()
    result = workshop.result(held)
    object.__setattr__(result.phase, "parameters", {**result.phase.parameters, "noise_std": 0.01})

    with pytest.raises(TargetNotMetError):
        workshop.publish(held, result)

    assert _count(workshop, VersionRow) == 0


def test_certificates_of_a_model_form_a_chain(workshop: Workshop) -> None:
    """Exclusions between two versions are links too, and nothing forks."""
    workshop.train()
    trained, held_out = workshop.split()
    with workshop.transaction() as early:
        early.execute(text("SELECT now()"))  # this transaction starts first and certifies last
        workshop.forget(held_out[0])
        workshop.forget(trained[0])
        workshop.unlearn()
        row = workshop.model()
        asked = NewForgetRequest(DATASET, record_ids=[held_out[1]])
        workshop.services.acceptance.submit(early, asked, api_key_id=workshop.key_id)
    workshop.forget(trained[1])
    workshop.unlearn()

    with workshop.transaction() as session:
        query = select(CertificateRow).where(CertificateRow.model_id == row.id)
        rows = session.scalars(query).all()
        links = [statement_of(r.envelope)["predicate"]["previous_certificate"] for r in rows]
        digests = {r.sha256 for r in rows}
        assert len(rows) == 5
        assert len(set(links)) == 5
        assert set(links) - {None} < digests
        for certificate in rows:
            payload = base64.b64decode(json.loads(certificate.envelope)["payload"])
            assert hashlib.sha256(payload).hexdigest() == certificate.sha256


@given(
    batches=st.lists(
        st.lists(st.integers(0, 39), min_size=1, max_size=8, unique=True), min_size=1, max_size=6
    )
)
@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_certificate_covers_the_union_of_all_requests_so_far(
    services: Services, app_database: Engine, batches: list[list[int]]
) -> None:
    with app_database.begin() as connection:
        empty(connection, all_tables().tables)
    workshop = Workshop(services)
    workshop.train()
    trained = set(workshop.split()[0])
    covered_records: set[str] = set()
    covered_requests: list[tuple[str, set[str]]] = []
    certificate: str | None = None
    for batch in batches:
        named = [record_ids()[i] for i in batch]
        request_id = workshop.forget(*named)
        if trained & set(named):
            covered_requests.append((request_id, trained & set(named)))
            covered_records |= trained & set(named)
        workshop.dispatch()
        if workshop.active_run() is not None:
            certificate = workshop.work().certificate_id
            expected = (len(covered_requests), len(covered_records))
        workshop.services.clean_up()
        assert workshop.request(request_id).state == "completed"

    if certificate is None:
        return
    forgotten = _predicate(workshop, certificate)["forgotten"]
    assert (forgotten["requests"], forgotten["records"]) == expected
    tree = forgotten["covered"]
    last = [each for each in covered_requests if _covered_by(workshop, each[0], certificate)]
    leaves = [leaf for request in last for leaf in _leaves(workshop, *request)]
    assert tree == {"size": len(leaves), "root": trees.root(leaves).hex()}


def _leaves(workshop: Workshop, request_id: str, records: set[str]) -> list[bytes]:
    """Return the commitments of one request to some records, in the order of a tree."""
    seqs = workshop.seqs(*records)
    with workshop.transaction() as session:
        query = select(ForgottenRecordRow).where(ForgottenRecordRow.request_id == request_id)
        rows = session.scalars(query).all()
    return sorted(row.commitment for row in rows if row.record_seq in seqs)


def _covered_by(workshop: Workshop, request_id: str, certificate_id: str) -> bool:
    with workshop.transaction() as session:
        version = session.scalar(
            select(VersionRow).where(VersionRow.certificate_id == certificate_id)
        )
        return repository.request(session, request_id).forget_epoch <= version.covers_epoch

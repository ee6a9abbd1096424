"""After its time nothing tells whom a request named, and all that was certified still verifies."""

import base64
import json
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, delete, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ProgrammingError

from app.api.forget_requests import answer_of
from app.client.download import bundle_bytes
from app.delivery.callbacks.tables import CallbackEndpointRow
from app.domain.errors import ConflictError, UnknownRecordsError
from app.domain.states import Ground
from app.evidence.certificates.bundle import read_bundle
from app.evidence.certificates.receipts import Receipt, check_receipt
from app.evidence.certificates.schema import AsTrained, read_statement
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.verification import check_place
from app.ledger import decisions, evidence, repository
from app.ledger.certificates import bundles
from app.ledger.new_requests import NewForgetRequest
from app.ledger.views import request_views
from app.operations import erase_check, reconciliation
from app.operations.erase_check import Stores
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import RecordRow
from app.registry.tables import LineageRecordsRow
from app.registry.training_set import TrainingSet
from app.runtime.embedded import EmbeddedServers
from app.runtime.locations import redis_connection
from tests.support import backups
from tests.support.dumps import stores_of
from tests.support.logbook import faults
from tests.support.markers import Marker, search_bytes, search_files
from tests.support.salts import salt_of
from tests.support.trust import trust_in
from tests.support.workshop import DATASET, RECORDS_PER_SUBJECT, Workshop, batches_of

NOW, EVER = timedelta(0), timedelta(days=2192)
TICKET, WRITTEN = "ticket-of-the-person", "as she wrote on paper"


@pytest.fixture
def person(workshop: Workshop) -> int:
    """The number of somebody from whose records all models learn."""
    workshop.define()
    batches = {"batch_size": 4, "held_out_fraction": 0.25}
    workshop.define(
        "batches",
        architecture="linear_head",
        mechanism="tracked_release",
        recipe=batches,
        epsilon=8.0,
    )
    for name in ("model", "batches"):
        workshop.work(name)
    learned = set.intersection(*(set(workshop.split(n)[0]) for n in ("model", "batches")))
    return min(int(each.removeprefix("record-")) for each in learned) // RECORDS_PER_SUBJECT


def _ids(person: int) -> list[str]:
    first = person * RECORDS_PER_SUBJECT
    own = [f"record-{first + n}" for n in range(RECORDS_PER_SUBJECT)]
    return [*own, f"subject-{person}", TICKET, WRITTEN]


def _complete(workshop: Workshop) -> None:
    workshop.dispatch()
    for name in ("model", "batches"):
        if workshop.active_run(name) is not None:
            workshop.work(name)
    workshop.services.clean_up()


def _forget(workshop: Workshop, person: int) -> str:
    """Have a person forgotten, after an extension; return the request."""
    request = workshop.forget(subjects=[f"subject-{person}"], external_id=TICKET)
    with workshop.transaction() as session:
        decisions.extend(session, request, WRITTEN)
    _complete(workshop)
    assert workshop.request(request).state == "completed"
    return request


def _bundles(workshop: Workshop, request: str) -> list[bytes]:
    services = workshop.services
    with workshop.transaction() as session:
        return [
            bundle_bytes(
                bundles.bundle_of(session, each, signer=services.signer, request_id=request)
            )
            for each in session.scalars(select(CertificateRow).order_by(CertificateRow.id))
        ]


def _receipt(workshop: Workshop, request: str, person: int) -> bytes:
    salt = base64.b64encode(salt_of(workshop.services, request)).decode()
    records = workshop.request(request).record_count
    named = {"record_ids": [], "subject_ids": [f"subject-{person}"]}
    return json.dumps({"receipt_salt": salt, "records": records} | named).encode()


def _secrets(workshop: Workshop, request: str, person: int) -> list[Marker]:
    """Return all that would tell who it was."""
    pseudonyms, row = workshop.services.forget_requests.pseudonyms, workshop.request(request)
    first = person * RECORDS_PER_SUBJECT
    with workshop.transaction() as session:
        dataset = datasets.dataset_named(session, DATASET).id
    hidden = {
        "receipt": salt_of(workshop.services, request),
        "salt": row.salt or b"",
        "digest": row.request_digest or b"",
        "ticket": pseudonyms.external_id(TICKET),
        "subject": pseudonyms.subject(dataset, f"subject-{person}"),
        **{
            f"record {n}": pseudonyms.record(dataset, f"record-{first + n}")
            for n in range(RECORDS_PER_SUBJECT)
        },
    }
    # Shorter ones are parts of others' ids.
    raw = {each: each.encode() for each in (TICKET, WRITTEN)}
    return [Marker(name, content) for name, content in (hidden | raw).items()]


@pytest.mark.slow
def test_nothing_is_left_of_a_person_after_the_retention_and_all_verifies(
    workshop: Workshop, person: int, servers: EmbeddedServers, database_url: str, tmp_path: Path
) -> None:
    services = workshop.services
    request = _forget(workshop, person)
    other = workshop.forget(subjects=[f"subject-{person + 1}"], external_id="another's")
    receipt, before = _receipt(workshop, request, person), _bundles(workshop, request)
    secrets = _secrets(workshop, request, person)

    def search(before: str = "CHECKPOINT") -> set[str]:
        url = make_url(servers.migration_url).set(database=make_url(database_url).database)
        owner = create_engine(url, isolation_level="AUTOCOMMIT")
        with owner.connect() as connection:
            connection.execute(text(before))
            connection.execute(text("VACUUM FULL"))
            connection.execute(text("CHECKPOINT"))
            directory = Path(connection.execute(text("SHOW data_directory")).scalar_one())
        owner.dispose()
        backups.dump(servers, database_url, tmp_path / "dump", form="plain")
        home = services.settings.data_dir
        # The write-ahead log is Postgres' own backup: it goes with its age.
        written = [path for path in directory.rglob("*") if "pg_wal" not in path.parts]
        files = [tmp_path / "dump", *written, *(home / "blobs").rglob("*"), *home.rglob("*.log")]
        found = search_files([path for path in files if path.is_file()], secrets)
        stored = {
            name: bytes(c, "utf-8") if isinstance(c, str) else c for name, c in stores_of(services)
        }
        return {each.marker for each in (*found, *search_bytes(stored, secrets))}

    assert {"salt", "digest", "ticket", "subject", "record 0", WRITTEN} <= search("ANALYZE")
    evidence.destroy(services.database, retention=NOW)
    assert search() == set()

    _verify(workshop, [*before, *_bundles(workshop, request)], receipt)
    assert faults(services) == []
    assert _findings(workshop, f"subject-{person}") == []
    assert _findings(workshop, f"subject-{person + 1}")
    _complete(workshop)
    assert workshop.request(other).state == "completed"
    with pytest.raises(UnknownRecordsError):
        workshop.forget(subjects=[f"subject-{person}"])
    workshop.push_again(f"record-{person * RECORDS_PER_SUBJECT}")
    again = workshop.forget(subjects=[f"subject-{person}"], external_id=TICKET)
    assert again != request


def _verify(workshop: Workshop, found: list[bytes], receipt: bytes) -> None:
    """Verify bundles as somebody does who has no weights any more, and the receipt with them."""
    with_records = 0
    for bundle in found:
        check_place(bundle=bundle, trusted=trust_in(workshop.services))
        read = read_bundle(bundle)
        predicate = read_statement(read.envelope.payload)[0].predicate
        if read.request is not None and (read.request.covered or read.request.excluded):
            assert not isinstance(predicate, AsTrained)
            check_receipt(Receipt.from_json(receipt), read.request, predicate.forgotten)
            with_records += 1
    assert with_records >= 2


def _findings(workshop: Workshop, owners_id: str) -> list[erase_check.Finding]:
    services, found = workshop.services, list[erase_check.Finding]()
    stores = Stores(
        database=services.database,
        blobs=services.blobs,
        redis=redis_connection(services.settings),
        pseudonyms=services.forget_requests.pseudonyms,
        logs=services.settings.data_dir / "log",
    )
    erase_check.check(stores, dataset=DATASET, owners_id=owners_id, report=found.append)
    return found


def test_an_open_request_keeps_its_evidence_and_so_does_what_it_names(workshop: Workshop) -> None:
    workshop.train()
    learned = workshop.split()[0]
    ended = workshop.forget(learned[0])
    workshop.unlearn()
    workshop.services.clean_up()
    opened = workshop.forget(learned[0], learned[1])  # names a record that is erased
    for request in (ended, opened):
        _destroy(workshop, EVER)
        assert workshop.request(request).salt is not None
    _destroy(workshop, NOW)
    assert workshop.request(ended).salt is None
    assert workshop.request(opened).salt is not None
    with workshop.transaction() as session:
        assert all(row.record_key for row in repository.records_of(session, ended))
    workshop.dispatch()
    if workshop.active_run() is not None:
        workshop.work()
    workshop.services.clean_up()
    _destroy(workshop, NOW)
    with workshop.transaction() as session:
        assert not any(row.record_key for row in repository.records_of(session, opened))
        view = request_views.one(session, opened)
        assert answer_of(workshop.services, view).receipt_salt is None


def test_a_refused_request_is_reopened_until_its_evidence_is_destroyed(workshop: Workshop) -> None:
    told = ["https://shop.example/told"]
    asked = NewForgetRequest(
        dataset=DATASET, record_ids=["record-1"], hold=True, status_callback_urls=told
    )

    def is_over() -> bool:
        with workshop.transaction() as session:
            (endpoint,) = session.scalars(select(CallbackEndpointRow))
            return endpoint.ended_at is not None

    with workshop.transaction() as session:
        held = workshop.services.acceptance.submit(session, asked, api_key_id=workshop.key_id)[0].id
    _destroy(workshop, NOW)
    assert workshop.request(held).salt is not None
    with workshop.transaction() as session:
        decisions.refuse(session, held, Ground.OTHER, WRITTEN)
        decisions.reopen(session, held)
        decisions.refuse(session, held, Ground.OTHER, WRITTEN)
    assert not is_over()  # it may be reopened, and its sender be told
    _destroy(workshop, NOW)
    assert is_over()
    refused = workshop.request(held)
    assert (refused.state, refused.salt, refused.explanation) == ("refused", None, None)
    with workshop.transaction() as session, pytest.raises(ConflictError, match="make a new one"):
        decisions.reopen(session, held)
    workshop.forget("record-1")  # it is stored, and known as before


def test_a_restored_backup_from_before_agrees_and_its_evidence_is_destroyed_again(
    workshop: Workshop, servers: EmbeddedServers, database_url: str, tmp_path: Path
) -> None:
    services = workshop.services
    workshop.train()
    learned = workshop.split()[0]
    request = workshop.forget(learned[0])
    workshop.unlearn()
    services.clean_up()
    backups.dump(servers, database_url, tmp_path / "dump")
    _destroy(workshop, NOW)
    backups.restore(servers, database_url, tmp_path / "dump")
    with workshop.transaction() as session:
        found = reconciliation.reconcile(session, services.blobs, services.signer)
    assert (found.other_objects, found.versions, found.attention) == (0, [], [])
    assert workshop.request(request).salt is not None
    _destroy(workshop, NOW)
    assert workshop.request(request).salt is None
    with workshop.transaction() as session:
        assert not any(row.record_key for row in repository.records_of(session, request))
    assert faults(services) == []


def test_weights_imported_later_count_a_record_whose_keys_are_destroyed_as_learned(
    workshop: Workshop,
) -> None:
    workshop.train()
    learned = workshop.split()[0]
    request = workshop.forget(learned[0])
    workshop.unlearn()
    workshop.services.clean_up()
    _destroy(workshop, NOW)
    workshop.define("imported", upload=True)
    workshop.upload("imported")
    workshop.work("imported")
    membership = workshop.membership("imported")
    with workshop.transaction() as session:
        (row,) = repository.records_of(session, request)
        assert membership.touched_by(row)
        found = TrainingSet(session, registry.model_named(session, "imported"))
        assert row.seq in found.records.seqs
    other = workshop.forget(learned[1])
    workshop.dispatch()
    workshop.work("model")
    workshop.services.clean_up()
    assert workshop.request(other).salt is not None
    assert faults(workshop.services) == []


def test_a_model_knows_on_which_side_a_record_was_without_its_keys(workshop: Workshop) -> None:
    workshop.train()
    learned, held_out = workshop.split()
    request = workshop.forget(learned[0], held_out[0])
    workshop.unlearn()
    workshop.services.clean_up()
    membership = workshop.membership()

    def sides() -> list[bool]:
        with workshop.transaction() as session:
            model = registry.model_named(session, "model")
            rows = repository.records_of(session, request)
            assert not TrainingSet(session, model).contradicts_kept()
            query = select(membership.in_sql()[0]).select_from(RecordRow)
            query = query.where(RecordRow.seq.in_([row.seq for row in rows]))
            found = session.scalars(query.order_by(RecordRow.seq)).all()
            assert list(found) == [
                membership.is_held_out(row) for row in sorted(rows, key=lambda row: row.seq)
            ]
            return list(found)

    before = sides()
    assert sorted(before) == [False, True]
    _destroy(workshop, NOW)
    assert sides() == before


def test_batches_stay_as_they_are_though_what_a_run_kept_of_them_is_lost(
    workshop: Workshop, person: int
) -> None:
    _forget(workshop, person)

    def batches() -> dict[int, int]:
        with workshop.transaction() as session:
            found = TrainingSet(session, registry.model_named(session, "batches"))
            return batches_of(found, 4, begun_at_epoch=0)

    before = batches()
    with workshop.transaction() as session:
        session.execute(delete(LineageRecordsRow))
    _destroy(workshop, NOW)
    assert batches() == before


def test_nobody_but_the_pass_gets_rid_of_evidence(workshop: Workshop) -> None:
    request = workshop.forget("record-1")
    for change in (
        "UPDATE forget_requests SET salt = NULL, request_digest = NULL",
        "UPDATE records SET record_key = NULL, subject_key = NULL, sides = '{}'",
        "UPDATE records SET record_key = subject_key",
    ):
        with pytest.raises(ProgrammingError, match="settled"), workshop.transaction() as session:
            session.execute(text(change))
    assert workshop.request(request).salt is not None


def _destroy(workshop: Workshop, retention: timedelta) -> None:
    evidence.destroy(workshop.services.database, retention=retention)

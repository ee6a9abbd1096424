"""Stored objects, keys and the ledger: where they agree, and every way in which they can differ."""

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import func, inspect, select, text

from app.domain.errors import GoneError, ObjectStoreError
from app.operations import storage_check
from app.operations.storage_check import Finding, Stores, Verdict
from app.runtime.database import Base
from app.runtime.locations import object_dir
from app.services import Services
from app.storage.aws import S3ObjectStore
from app.storage.blobs import Blobs, doom
from app.storage.objects import LocalObjectStore, ObjectReader
from app.storage.stores import key_store, object_store
from app.storage.tables import BlobRow
from tests.support.key_keepers import EVERY
from tests.support.s3 import ACCESS, S3Server
from tests.support.stored import live, pending
from tests.support.workshop import Workshop

pytestmark = pytest.mark.parametrize("keeper", EVERY, indirect=True)

Check = Callable[[], list[tuple[str, str]]]


@pytest.fixture
def stores(services: Services) -> Stores:
    return Stores(
        database=services.database,
        objects=object_store(services.settings),
        keys=key_store(services.settings),
    )


@pytest.fixture
def check(workshop: Workshop, stores: Stores) -> Check:
    """Return verdicts with places, in order; the service has done some work before."""
    workshop.train()
    workshop.define("imported", upload=True, first_release="none")
    workshop.upload("imported")
    workshop.forget(workshop.split()[0][0])
    workshop.unlearn()
    workshop.services.clean_up()

    def run() -> list[tuple[str, str]]:
        findings: list[Finding] = []
        storage_check.check(stores, report=findings.append)
        return [(f.verdict.value, f"{f.where}: {f.meaning}") for f in findings]

    return run


def _blob(workshop: Workshop, *, state: str, kind: str = "weights") -> str:
    with workshop.transaction() as session:
        query = select(BlobRow.id).where(BlobRow.state == state, BlobRow.kind == kind)
        return session.scalars(query.limit(1)).one()


def _age(workshop: Workshop, blob_id: str, minutes: int) -> None:
    with workshop.transaction() as session:
        moved = "UPDATE blobs SET created_at = now() - make_interval(mins => :m) WHERE id = :id"
        session.execute(text(moved), {"m": minutes, "id": blob_id})


def test_after_work_stores_and_ledger_agree(
    check: Check, workshop: Workshop, stores: Stores
) -> None:
    assert check() == []
    with workshop.transaction() as session:
        live = session.scalar(select(func.count()).where(BlobRow.state == "live"))
        shredded = session.scalar(select(func.count()).where(BlobRow.state == "shredded"))
    counts = storage_check.check(stores, report=pytest.fail)
    assert (counts.objects, counts.keys, counts.rows) == (live, live, live)
    assert live >= 3
    assert shredded >= 1


@pytest.mark.parametrize("what", ["object", "key"])
def test_what_no_row_names_is_a_fault(check: Check, stores: Stores, what: str) -> None:
    if what == "object":
        stores.objects.write("blob_stranger", [b"content"])
    else:
        stores.keys.create("blob_stranger")
    ((verdict, told),) = check()
    assert verdict == "fault"
    assert told.startswith(f"{what} blob_stranger: no row of the database names it")


@pytest.mark.parametrize(
    ("what", "told"), [("object", "its object is missing"), ("key", "its key is missing")]
)
def test_a_row_without_what_it_promises_is_a_fault(
    check: Check, workshop: Workshop, stores: Stores, what: str, told: str
) -> None:
    blob_id = _blob(workshop, state="live")
    if what == "object":
        stores.objects.delete(blob_id)
    else:
        stores.keys.destroy(blob_id)
    ((verdict, found),) = check()
    assert verdict == "fault"
    assert found.startswith(f"row {blob_id} (weights, live): {told}")


@pytest.mark.parametrize("content", [b"", b"short"])
def test_an_object_of_another_size_is_a_fault(
    check: Check, workshop: Workshop, stores: Stores, content: bytes
) -> None:
    blob_id = _blob(workshop, state="live")
    stores.objects.write(blob_id, [content])
    ((verdict, found),) = check()
    assert verdict == "fault"
    assert f"its object has {len(content)} bytes, not " in found


def test_a_bucket_is_looked_into_too(services: Services, stores: Stores) -> None:
    server = S3Server()
    objects = S3ObjectStore(server.bucket, endpoint=server.endpoint, prefix="blobs/", **ACCESS)
    blobs = Blobs(services.database, objects, stores.keys)
    for content in (b"", b"short"):
        blob = live(blobs, "weights", b"content")
        objects.write(blob.id, [content])
    objects.write("stranger", [b"content"])
    findings: list[Finding] = []
    try:
        storage_check.check(Stores(services.database, objects, stores.keys), report=findings.append)
    finally:
        server.stop()
    assert {finding.verdict for finding in findings} == {Verdict.FAULT}
    assert len(findings) == 5
    told = {finding.meaning.partition(",")[0] for finding in findings}
    assert {"its object is empty", "its object has 5 bytes", "nothing refers to it"} < told


def test_what_outlived_its_shredding_is_a_fault(
    check: Check, workshop: Workshop, stores: Stores
) -> None:
    blob_id = _blob(workshop, state="shredded")
    stores.keys.create(blob_id)
    stores.objects.write(blob_id, [b"content"])
    assert check() == [
        ("fault", f"key {blob_id}: the blob was shredded, but its key exists"),
        ("fault", f"object {blob_id}: it was deleted, but exists again"),
    ]


def test_an_object_whose_deletion_failed_is_pending(
    check: Check, workshop: Workshop, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob_id = pending(workshop.services.blobs, "weights", b"content").id

    def fail(*_: object) -> None:
        raise ObjectStoreError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(LocalObjectStore, "delete", fail)
        workshop.services.blobs.sweep()
    ((verdict, found),) = check()
    assert (verdict, found.partition(":")[0]) == ("pending", f"object {blob_id}")


@pytest.mark.parametrize("filled", [False, True])
def test_a_blob_that_is_being_written_is_no_orphan_until_it_should_be_given_up(
    check: Check, workshop: Workshop, filled: bool
) -> None:
    blobs = workshop.services.blobs
    with workshop.transaction() as session:
        blob_id = blobs.reserve(session, "weights")
        if filled:
            blobs.fill(blob_id, b"content", session=session)
    _age(workshop, blob_id, 59)
    ((verdict, found),) = check()
    assert (verdict, found.partition(":")[0]) == ("pending", f"row {blob_id} (weights, pending)")
    _age(workshop, blob_id, 61)
    ((verdict, found),) = check()
    assert verdict == "fault"
    assert "is a dispatcher running?" in found
    blobs.sweep()
    assert check() == []


def test_a_blob_that_waits_for_a_sweep_is_pending(check: Check, workshop: Workshop) -> None:
    blob_id = pending(workshop.services.blobs, "weights", b"content").id
    ((verdict, found),) = check()
    assert (verdict, found.partition(":")[0]) == ("pending", f"row {blob_id} (weights, pending)")


def test_a_live_blob_that_nothing_refers_to_is_a_fault(check: Check, workshop: Workshop) -> None:
    blob = live(workshop.services.blobs, "weights", b"content")
    assert check() == [("fault", f"row {blob.id} (weights, live): nothing refers to it")]


def test_every_table_that_refers_to_blobs_is_looked_at(services: Services) -> None:
    inspector = inspect(services.database.engine)
    in_database = {
        (table, key["constrained_columns"][0])
        for table in inspector.get_table_names()
        for key in inspector.get_foreign_keys(table)
        if key["referred_table"] == "blobs"
    }
    known = {
        (table.name, key.parent.name)
        for table in Base.metadata.tables.values()
        for key in table.foreign_keys
        if key.column.table is BlobRow.__table__
    }
    assert known == in_database
    assert len(known) >= 5


def test_a_blob_that_is_shredded_while_it_is_looked_at_is_no_fault(
    check: Check, workshop: Workshop, stores: Stores
) -> None:
    blob_id = _blob(workshop, state="live")

    class Meanwhile(LocalObjectStore):
        def open_range(self, name: str, start: int, stop: int) -> ObjectReader:
            if name == blob_id:
                with workshop.transaction() as session:
                    doom(session, blob_id)
                workshop.services.blobs.sweep()
            return super().open_range(name, start, stop)

    objects = Meanwhile(object_dir(workshop.services.settings))
    storage_check.check(Stores(stores.database, objects, stores.keys), report=pytest.fail)
    with pytest.raises(GoneError):
        stores.objects.open_range(blob_id, 0, 1)


def test_a_service_at_work_is_not_accused(check: Check, workshop: Workshop, stores: Stores) -> None:
    done = threading.Event()
    failures: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(15):
                pending(workshop.services.blobs, "weights", b"content")
                workshop.services.blobs.sweep()
        except Exception as error:  # noqa: BLE001 - shown below
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    findings: list[Finding] = []
    while not done.is_set():
        storage_check.check(stores, report=findings.append)
    thread.join()
    assert failures == []
    assert [finding for finding in findings if finding.verdict is Verdict.FAULT] == []

"""What the search for an id's remains finds: nothing but hashes, or whatever was put there."""

import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis
from sqlalchemy import select, update

from app.domain.errors import GoneError, NotFoundError
from app.evidence import log
from app.ledger.tables import ForgetRequestRow
from app.operations import erase_check
from app.operations.erase_check import Stores
from app.operations.storage_check import Finding, Verdict
from app.registry import backbones
from app.registry.datasets import features, repository
from app.registry.datasets.tables import FeatureShardRow, ShardRow
from app.services import Services
from app.storage.stores import key_store
from app.storage.tables import BlobRow
from tests.support.key_keepers import EVERY
from tests.support.shards import encode_shard
from tests.support.stored import live, pending
from tests.support.weights import public_backbone
from tests.support.workshop import DATASET, Workshop

pytestmark = pytest.mark.parametrize("keeper", EVERY, indirect=True)

SUBJECT = "subject-3"
RECORD = "record-12"  # one of the subject's
Search = Callable[[str], list[Finding]]


@pytest.fixture
def search(workshop: Workshop, services: Services, redis: Redis) -> Search:
    stores = Stores(
        database=services.database,
        blobs=services.blobs,
        redis=redis,
        pseudonyms=services.forget_requests.pseudonyms,
        logs=services.settings.data_dir / "log",
    )

    def run(owners_id: str) -> list[Finding]:
        findings: list[Finding] = []
        is_well = erase_check.check(
            stores, dataset=DATASET, owners_id=owners_id, report=findings.append
        )
        assert is_well == (Verdict.FAULT not in _verdicts(findings))
        assert not [finding for finding in findings if owners_id in finding.where + finding.meaning]
        return findings

    return run


@pytest.fixture
def forgotten(workshop: Workshop) -> str:
    """A completed request for the subject, whose features were cached too; its id."""
    _cache_features(workshop)
    request_id = workshop.forget(subjects=[SUBJECT])
    workshop.services.clean_up()
    assert workshop.request(request_id).state == "completed"
    return request_id


def _cache_features(workshop: Workshop) -> None:
    with workshop.transaction() as session:
        backbone_id = backbones.define_backbone(session, public_backbone("public")).id
        dataset = repository.dataset_named(session, DATASET)
        (shard,) = repository.shards(session, dataset.id)
        source = features.source_of(
            session,
            shard.id,
            backbone_id=backbone_id,
            weights_sha256="5a" * 32,
            reading_sha256="0b" * 32,
        )
        content = workshop.services.blobs.read(shard.blob_id)
        assert features.add(session, workshop.services.blobs, source, content)


def _verdicts(findings: list[Finding]) -> Counter[Verdict]:
    return Counter(finding.verdict for finding in findings)


def _faults(findings: list[Finding]) -> list[str]:
    return [f"{f.where}: {f.meaning}" for f in findings if f.verdict is Verdict.FAULT]


def test_of_a_remembered_subject_the_stored_rows_are_told(search: Search) -> None:
    findings = search(SUBJECT)
    assert _verdicts(findings) == {Verdict.PENDING: 8}  # four records, each in one shard
    assert {finding.where.split()[0] for finding in findings} == {"record", "shard"}


@pytest.mark.parametrize(("owners_id", "records"), [(SUBJECT, 4), (RECORD, 1)])
def test_of_a_completed_request_hashes_and_commitments_are_left(
    search: Search, forgotten: str, owners_id: str, records: int
) -> None:
    findings = search(owners_id)
    assert _verdicts(findings) == {Verdict.BY_DESIGN: 2 * records}
    meanings = Counter(finding.meaning.partition(",")[0] for finding in findings)
    assert meanings == {"keyed hash": records, "salted commitment": records}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("external_id", "alice@example.com"),
        ("external_id", f"alice@example.com/{DATASET}"),  # as a request in all datasets is named
        ("idempotency_key", "alice@example.com"),
    ],
)
def test_a_request_that_was_named_after_the_person_is_told(
    workshop: Workshop, search: Search, name: str, given: str
) -> None:
    request_id = workshop.forget("record-1", **{name: given})
    (finding,) = search("alice@example.com")
    assert (finding.verdict, finding.where) == (Verdict.BY_DESIGN, f"request {request_id}")
    assert name.split("_", maxsplit=1)[0] in finding.meaning.lower()


def test_nothing_is_left_of_an_id_that_never_was(search: Search) -> None:
    assert search("subject-unheard-of") == []


def test_an_unknown_dataset_is_told(services: Services, search: Search) -> None:
    with pytest.raises(NotFoundError):
        erase_check.check(
            Stores(services.database, services.blobs, None, services.records.pseudonyms, Path()),
            dataset="nothing",
            owners_id=SUBJECT,
            report=pytest.fail,
        )


def test_a_request_on_its_way_is_pending(
    workshop: Workshop, search: Search, services: Services
) -> None:
    workshop.train()
    trained_on, _ = workshop.split()
    request_id = workshop.forget(trained_on[0])
    services.clean_up()
    findings = search(trained_on[0])
    assert _verdicts(findings) == {Verdict.PENDING: 2}
    assert any(
        request_id in f.where and "erased when all models forgot it" in f.meaning for f in findings
    )


def test_erasing_puts_the_other_rows_under_new_keys_and_destroys_the_old(
    workshop: Workshop, services: Services
) -> None:
    _cache_features(workshop)
    keys = key_store(services.settings)
    with workshop.transaction() as session:
        before = [*session.scalars(select(ShardRow.blob_id))]
        before += session.scalars(select(FeatureShardRow.blob_id))
    old = {keys.get(blob_id) for blob_id in before}

    workshop.forget(subjects=[SUBJECT])
    services.clean_up()

    with workshop.transaction() as session:
        after = [*session.scalars(select(ShardRow.blob_id))]
        after += session.scalars(select(FeatureShardRow.blob_id))
    assert len(before) == len(after) == 2
    assert old.isdisjoint(keys.get(blob_id) for blob_id in after)
    assert sorted(keys.blob_ids()) == sorted(after)
    for blob_id in before:
        with pytest.raises(GoneError):
            services.blobs.read(blob_id)


@pytest.mark.parametrize("table", [ShardRow, FeatureShardRow])
def test_a_row_that_was_not_erased_is_a_fault(
    workshop: Workshop, search: Search, services: Services, forgotten: str, table: type
) -> None:
    (seq,) = workshop.seqs(RECORD)
    stale = live(services.blobs, "shard", encode_shard(seqs=[seq], labels=[0], features=_row()))
    with workshop.transaction() as session:
        session.execute(update(table).values(blob_id=stale.id))
    (fault,) = _faults(search(RECORD))
    assert fault.endswith(f"holds the erased record {seq}")
    assert fault.startswith("shard " if table is ShardRow else "cached features ")


def test_a_completed_request_whose_record_is_stored_is_a_fault(
    workshop: Workshop, search: Search
) -> None:
    request_id = workshop.forget(RECORD)
    workshop.forged = True
    with workshop.transaction() as session:
        for state in ("certified", "completed"):
            session.execute(
                update(ForgetRequestRow)
                .where(ForgetRequestRow.id == request_id)
                .values(state=state)
            )
    (fault,) = _faults(search(RECORD))
    assert "the request is completed, the record is stored" in fault


def _packed(raw):
    """A shard in which bytes occur, though not in the bytes that are stored."""
    import numpy as np

    rows = np.frombuffer(raw, dtype=np.uint8)[None].repeat(400, axis=0)
    rows[:-1, -1] = ord("~")  # the last row is packed as all but the last letter of others
    content = encode_shard(seqs=np.arange(400), labels=np.zeros(400, dtype=int), features=rows)
    assert raw not in content
    return content


def _row():
    import numpy as np

    return np.array([[1.0, 2.0]], dtype=np.float32)


def test_a_raw_id_is_found_in_every_store(
    workshop: Workshop,
    search: Search,
    services: Services,
    redis: Redis,
    forgotten: str,
) -> None:
    raw = RECORD.encode()
    with workshop.transaction() as session:
        log.append(session, "test.careless", record=RECORD)
        request = session.get_one(ForgetRequestRow, forgotten)
        request.failure_reason = f"ticket about {RECORD}"
    workshop.forged = True
    pending(services.blobs, "weights", b"\0" * (1024 * 1024 - 4) + raw)
    pending(services.blobs, "shard", _packed(raw))
    redis.set("plain", raw)
    redis.hset("job", "data", zlib.compress(b'{"id": "' + raw + b'"}'))
    redis.rpush("list", b"x" + raw + b"yz")
    redis.set(raw + b"-name", b"value")
    logs = services.settings.data_dir / "log"
    logs.mkdir(exist_ok=True)
    (logs / "postgres.log").write_bytes(bytes(4 * 1024 * 1024 - 3) + raw)

    faults = _faults(search(RECORD))

    expected = (
        "table log_entries, row ",
        "table forget_requests, row " + forgotten,
        "(weights, pending): ",
        "(shard, pending): ",
        "log/postgres.log: ",
    )
    for place in expected:
        assert len([fault for fault in faults if place in fault]) == 1, (place, faults)
    assert len([fault for fault in faults if fault.startswith("Redis, ")]) == 4
    assert len(faults) == len(expected) + 4


def test_where_nobody_can_look_is_told(
    workshop: Workshop, search: Search, services: Services, forgotten: str
) -> None:
    with workshop.transaction() as session:
        blob_id = session.scalars(select(BlobRow.id).where(BlobRow.state == "live")).first()
    path = services.settings.data_dir / "blobs" / blob_id
    path.write_bytes(path.read_bytes()[:-1])
    findings = search(RECORD)
    unsearched = [f.where for f in findings if f.verdict is Verdict.UNSEARCHED]
    assert len(unsearched) == 2  # once for its rows, once for its bytes
    assert any(blob_id in where for where in unsearched)


def test_an_id_that_is_too_short_is_searched_by_its_hash_alone(search: Search) -> None:
    (finding,) = search("7")
    assert finding.verdict is Verdict.UNSEARCHED
    assert "by chance" in finding.meaning

"""Pushing records in, and erasing them."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, InvalidRecordsError, PayloadTooLargeError
from app.domain.schema import TableSchema
from app.ledger import accepting
from app.registry.datasets import repository, service
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import define_dataset
from app.registry.datasets.shards import unpack
from app.registry.datasets.tables import DatasetRow, RecordRow, ShardRow
from app.storage.blobs import Blobs
from app.storage.tables import BlobRow
from tests.support.arrays import array_schema
from tests.support.shards import decode_shard
from tests.support.workshop import DATASET, RECORDS, Workshop, records_parquet


def _stored(workshop: Workshop) -> tuple[np.ndarray, np.ndarray]:
    """Return all stored sequence numbers and first features."""
    with workshop.transaction() as session:
        dataset = repository.dataset_named(session, DATASET)
        blobs = [shard.blob_id for shard in repository.shards(session, dataset.id)]
    parts = [decode_shard(workshop.services.blobs.read(blob)) for blob in blobs]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[2][:, 0] for p in parts])


def _blobs(workshop: Workshop) -> dict[str, int]:
    with workshop.transaction() as session:
        query = select(BlobRow.state, func.count()).group_by(BlobRow.state)
        return dict(session.execute(query).all())


def test_pushed_records_are_stored_in_order(workshop: Workshop) -> None:
    seqs, first = _stored(workshop)

    assert seqs.tolist() == sorted(workshop.seqs(*(f"record-{i}" for i in range(RECORDS))))
    assert first.tolist() == list(range(RECORDS))


def test_the_same_upload_again_adds_nothing(workshop: Workshop) -> None:
    result = workshop.services.records.push(DATASET, records_parquet())

    assert (result.added, result.already_present) == (0, RECORDS)
    assert _blobs(workshop) == {"live": 1}


def test_a_faulty_upload_stores_nothing(workshop: Workshop) -> None:
    with pytest.raises(InvalidRecordsError):
        workshop.services.records.push(DATASET, b"nonsense")

    assert _blobs(workshop) == {"live": 1}
    with workshop.transaction() as session:
        assert session.scalar(select(func.count()).select_from(RecordRow)) == RECORDS


def _table(first: int, count: int, **columns: list) -> bytes:
    """Return records as the workshop writes them, but for these columns."""
    table = pq.read_table(pa.BufferReader(records_parquet(count, first=first)))
    for name, values in columns.items():
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(values))
    return to_parquet(table)


def test_a_longer_export_adds_what_is_new_and_names_what_changed(workshop: Workshop) -> None:
    workshop.push(6, first=100)
    workshop.forget("record-38")
    before = _stored(workshop)
    other = [[float(i), float(-i)] for i in range(36, 44)]
    other[0][1] = 0.5
    export = _table(
        36,
        8,
        features=other,
        label=[0, 0, *(i % 2 for i in range(38, 44))],
        subject_id=[f"subject-{i // 4}" for i in range(36, 39)]
        + ["subject-1"]
        + ["subject-10"] * 4,
    )

    result = workshop.services.records.push(DATASET, export)

    assert (result.added, result.already_present) == (5, 0)
    assert result.changed_rows == [0, 1, 3]  # features, label, subject
    seqs, first = _stored(workshop)
    new = [38, 40, 41, 42, 43]
    assert first.tolist() == [*before[1].tolist(), *new]
    assert set(seqs[-5:].tolist()) == workshop.seqs(*(f"record-{i}" for i in new))

    again = workshop.services.records.push(DATASET, export)
    assert (again.added, again.already_present, again.changed_rows) == (0, 5, [0, 1, 3])


@pytest.mark.parametrize("completed", [False, True], ids=["pending", "erased"])
def test_a_forgotten_record_that_is_pushed_again_is_another_one(
    workshop: Workshop, completed: bool
) -> None:
    (first,) = workshop.seqs("record-3")
    workshop.forget("record-3")
    if completed:
        workshop.services.clean_up()

    result = workshop.services.records.push(DATASET, records_parquet())

    assert (result.added, result.already_present) == (1, RECORDS - 1)
    (second,) = workshop.seqs("record-3")
    assert second > first
    assert _stored(workshop)[1].tolist().count(3) == 2 - completed
    with workshop.transaction() as session:
        assert session.get_one(RecordRow, first).forgotten_epoch == 1
        assert session.get_one(RecordRow, second).forgotten_epoch is None


def test_changed_records_take_the_place_of_those_stored(workshop: Workshop) -> None:
    workshop.push(6, first=100)
    workshop.forget("record-38")
    old = workshop.seqs("record-36", "record-101")

    result = workshop.replace("record-36", "record-38", "record-101", "record-200")

    assert (result.added, result.already_present) == (2, 0)
    assert (result.changed_rows, result.replaced_rows) == ((), [0, 2])
    request = workshop.request(str(result.forget_request))
    assert (request.record_count, request.push_count) == (2, 2)
    with workshop.transaction() as session:
        epochs = [session.get_one(RecordRow, seq).forgotten_epoch for seq in old]
    assert epochs == [request.forget_epoch] * 2
    assert workshop.seqs("record-36", "record-101").isdisjoint(old)
    workshop.services.clean_up()
    assert workshop.request(request.id).state == "completed"


def test_equal_records_are_no_change_that_replaces_anything(workshop: Workshop) -> None:
    first = workshop.replace("record-1")
    table = _table(0, 4)
    forget = workshop.services.acceptance.replacing(DATASET, api_key_id=workshop.key_id)
    back = workshop.services.records.push(DATASET, table, forget=forget)

    assert (back.already_present, back.replaced_rows) == (3, [1])
    assert back.forget_request not in (None, first.forget_request)
    again = workshop.services.records.push(DATASET, table, forget=forget)
    assert (again.already_present, again.replaced_rows, again.forget_request) == (4, [], None)


def test_what_a_push_would_replace_stays_where_its_request_is_refused(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = workshop.seqs("record-1", "record-2")
    monkeypatch.setattr(accepting, "MAX_IDS", 1)
    with pytest.raises(PayloadTooLargeError, match="2 records would be replaced"):
        workshop.replace("record-1", "record-2", "record-300")
    assert workshop.seqs("record-1", "record-2") == before
    assert len(_stored(workshop)[1]) == RECORDS


def test_a_replacement_that_is_overtaken_is_made_anew(workshop: Workshop) -> None:
    """Somebody is forgotten after the rows were compared: they are new then, not replaced."""
    real = workshop.services.acceptance.replacing(DATASET, api_key_id=workshop.key_id)
    overtaken: list[str] = []

    def forget(session: Session, record_ids: Sequence[str]) -> str:
        if not overtaken:
            overtaken.append(workshop.forget("record-1"))
            workshop.push_again("record-1")
            raise IntegrityError("", {}, ValueError())
        return real(session, record_ids)

    changed = _table(1, 1, label=[0])
    result = workshop.services.records.push(DATASET, changed, forget=forget)
    assert result.replaced_rows == [0]
    assert workshop.request(str(result.forget_request)).record_count == 2


def test_ids_are_compared_after_unicode_normalisation(workshop: Workshop) -> None:
    composed, decomposed = "Zo\u00e9", "Zoe\u0301"
    push = workshop.services.records.push
    push(DATASET, _table(100, 1, record_id=[composed], subject_id=[decomposed]))

    assert push(DATASET, _table(100, 1, record_id=[decomposed], subject_id=[composed])).added == 0
    with pytest.raises(InvalidRecordsError, match="the same as in row 0"):
        push(DATASET, _table(101, 2, record_id=[composed, decomposed]))
    request = workshop.forget(decomposed)
    assert workshop.forget(subjects=[composed]) != request
    assert push(DATASET, _table(100, 1, record_id=[composed])).added == 1


def test_an_id_is_found_by_the_spelling_that_brought_it_whatever_its_script(
    workshop: Workshop,
) -> None:
    """Two libraries may know different versions of Unicode; ids have only one normaliser."""
    new = "\U0001136a\U000113ce"  # U+113CE came with Unicode 16
    workshop.services.records.push(DATASET, _table(100, 1, record_id=[new], subject_id=[new]))
    assert workshop.request(workshop.forget(new)).record_count == 1
    assert workshop.request(workshop.forget(subjects=[new])).record_count == 1


def test_erasing_rewrites_the_shards_and_shreds_the_old_bytes(workshop: Workshop) -> None:
    workshop.push(10, first=100)
    with workshop.transaction() as session:
        dataset = repository.dataset_named(session, DATASET)
        before = [shard.blob_id for shard in repository.shards(session, dataset.id)]
    workshop.forget("record-3", "record-105", subjects=["subject-5"])

    workshop.services.clean_up()

    seqs, first = _stored(workshop)
    assert set(first.tolist()) == {*range(40), *range(100, 110)} - {3, 105, 20, 21, 22, 23}
    assert not set(seqs.tolist()) & workshop.seqs("record-3", "record-105", "record-20")
    for blob in before:
        with pytest.raises(Exception, match="shredded"):
            workshop.services.blobs.read(blob)
    assert _blobs(workshop) == {"live": 2, "shredded": 2}


def test_an_erasure_rewrites_a_part_of_what_was_pushed_with_it(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_SHARD_BYTES", 300)

    def shards() -> dict[str, tuple[int, int]]:
        with workshop.transaction() as session:
            query = select(BlobRow.id, BlobRow.size_bytes, ShardRow.rows).join(ShardRow)
            return {blob: (size, rows) for blob, size, rows in session.execute(query)}

    earlier = shards()
    workshop.push(100, first=100)
    before = {blob: found for blob, found in shards().items() if blob not in earlier}
    workshop.forget("record-150")
    workshop.services.clean_up()
    after = {blob: found for blob, found in shards().items() if blob not in earlier}

    rows = [rows for _, rows in before.values()]
    assert (len(rows) > 4, sum(rows)) == (True, 100)
    (rewritten,) = before.keys() - after.keys()
    (left,) = after.keys() - before.keys()
    assert after[left][1] == before[rewritten][1] - 1
    seqs, first = _stored(workshop)
    assert sorted(first.tolist()) == [*range(RECORDS), *range(100, 150), *range(151, 200)]
    by_seq = dict(zip(seqs.tolist(), first.tolist(), strict=True))
    assert {by_seq[seq] for seq in workshop.seqs("record-100", "record-199")} == {100, 199}


def test_no_part_of_a_push_is_stored_where_one_cannot_be(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_SHARD_BYTES", 300)

    def refused(session: Session, **given: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(repository, "add_records", refused)
    with pytest.raises(RuntimeError):
        workshop.push(100, first=100)
    workshop.services.clean_up()
    assert _stored(workshop)[1].tolist() == list(range(RECORDS))
    blobs = _blobs(workshop)
    assert (blobs.keys(), blobs["live"]) == ({"live", "shredded"}, 1)
    assert blobs["shredded"] > 4


def test_no_shard_is_larger_for_rows_of_very_different_sizes(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 4096
    monkeypatch.setattr(service, "_SHARD_BYTES", most)
    schema = TableSchema.of({"note": "string"}, record_id="id")
    with workshop.transaction() as session:
        dataset = define_dataset(session, name="notes", schema=schema).id
    notes = ["short"] * 90 + ["x" * 2000] * 9 + ["y" * 2 * most]
    table = pa.table({"id": [str(number) for number in range(100)], "note": notes})
    workshop.services.records.push("notes", to_parquet(table))
    with workshop.transaction() as session:
        blobs = [shard.blob_id for shard in repository.shards(session, dataset)]
    stored = [unpack(workshop.services.blobs.read(blob))[1] for blob in blobs]
    assert max(rows.nbytes for rows in stored if len(rows) > 1) <= most
    assert sorted(note for rows in stored for note in rows["note"].to_pylist()) == sorted(notes)
    assert len(stored) < 12


def test_pushes_of_the_same_records_in_other_orders_do_not_wait_for_each_other(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each inserts its keys in one order, whatever shards the records are in."""
    monkeypatch.setattr(service, "_SHARD_BYTES", 300)
    monkeypatch.setattr(service, "_ATTEMPTS", 1)
    add = repository.add_records

    def slow(session: Session, **given: Any) -> None:
        add(session, **given)
        time.sleep(0.05)

    monkeypatch.setattr(repository, "add_records", slow)
    table = pq.read_table(pa.BufferReader(records_parquet(100, first=100)))
    orders = map(np.random.default_rng(3).permutation, [100] * 4)
    uploads = [to_parquet(table.take(pa.array(order))) for order in orders]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(partial(workshop.services.records.push, DATASET), uploads))
    assert sorted(result.added for result in results) == [0, 0, 0, 100]
    assert len(_stored(workshop)[0]) == RECORDS + 100


def test_erasures_in_the_same_shards_do_not_wait_for_each_other(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two pushes at once, whose numbers alternate."""
    with workshop.transaction() as session:
        drawn = repository.new_seqs(session, 40)
    numbers = [drawn[0::2], drawn[1::2]]
    monkeypatch.setattr(repository, "new_seqs", lambda *_: numbers.pop(0))
    workshop.push(20, first=100)
    workshop.push(20, first=200)
    requests = [workshop.forget("record-100", "record-219")]
    requests.append(workshop.forget("record-119", "record-200"))
    read, both = Blobs.read, threading.Barrier(2)

    def meeting(self: Blobs, blob_id: str) -> bytes:
        with suppress(threading.BrokenBarrierError):
            both.wait(1)
        return read(self, blob_id)

    monkeypatch.setattr(Blobs, "read", meeting)
    complete = workshop.services.complete_at_once
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: complete(lambda _session: [each]), requests))
    assert [workshop.request(each).state for each in requests] == ["completed"] * 2


def test_a_shard_may_become_empty(workshop: Workshop) -> None:
    workshop.push(2, first=100)
    workshop.forget("record-100", "record-101")
    workshop.services.clean_up()

    with workshop.transaction() as session:
        dataset = repository.dataset_named(session, DATASET)
        assert [s.rows for s in repository.shards(session, dataset.id)] == [RECORDS, 0]


def test_a_name_keeps_its_schema(workshop: Workshop) -> None:
    same = array_schema(2)
    other = array_schema(3)
    with workshop.transaction() as session:
        first = repository.dataset_named(session, DATASET)
        assert define_dataset(session, name=DATASET, schema=same).id == first.id
        with pytest.raises(ConflictError):
            define_dataset(session, name=DATASET, schema=other)


def test_a_dataset_never_becomes_public_nor_ceases_to_be(workshop: Workshop) -> None:
    schema = array_schema(2)
    with workshop.transaction() as session:
        define_dataset(session, name="open", schema=schema, public=True)
    for name, public in ((DATASET, True), ("open", False)):
        with (
            workshop.transaction() as session,
            pytest.raises(ConflictError, match="that never changes"),
        ):
            define_dataset(session, name=name, schema=schema, public=public)
        with workshop.transaction() as session, pytest.raises(ProgrammingError, match="settled"):
            session.execute(update(DatasetRow).where(DatasetRow.name == name).values(public=public))

"""Pushing records in, and erasing them."""

import numpy as np
import pytest
from sqlalchemy import func, select

from app.datasets import repository
from app.datasets.service import define_dataset
from app.datasets.shards import decode_shard
from app.datasets.tables import RecordRow
from app.domain.errors import ConflictError, InvalidRecordsError
from app.domain.schema import FeatureSchema
from app.storage.tables import BlobRow
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
    for content in (b"nonsense", records_parquet(3, first=RECORDS - 1)):
        with pytest.raises(InvalidRecordsError):
            workshop.services.records.push(DATASET, content)

    assert _blobs(workshop) == {"live": 1}
    with workshop.transaction() as session:
        assert session.scalar(select(func.count()).select_from(RecordRow)) == RECORDS


def test_an_id_that_is_taken_is_named_by_row(workshop: Workshop) -> None:
    with pytest.raises(InvalidRecordsError) as caught:
        workshop.services.records.push(DATASET, records_parquet(4, first=RECORDS - 2))

    assert [(p.row, p.column) for p in caught.value.problems] == [
        (0, "record_id"),
        (1, "record_id"),
    ]


@pytest.mark.parametrize("completed", [False, True], ids=["pending", "erased"])
def test_a_forgotten_record_cannot_come_back(workshop: Workshop, completed: bool) -> None:
    workshop.forget("record-3")
    if completed:
        workshop.services.clean_up()
        # Not even by repeating the upload that brought it.
        with pytest.raises(InvalidRecordsError):
            workshop.services.records.push(DATASET, records_parquet())

    with pytest.raises(InvalidRecordsError, match="must not come back"):
        workshop.services.records.push(DATASET, records_parquet(1, first=3))


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


def test_a_shard_may_become_empty(workshop: Workshop) -> None:
    workshop.push(2, first=100)
    workshop.forget("record-100", "record-101")
    workshop.services.clean_up()

    with workshop.transaction() as session:
        dataset = repository.dataset_named(session, DATASET)
        assert [s.rows for s in repository.shards(session, dataset.id)] == [RECORDS, 0]


def test_a_name_keeps_its_schema(workshop: Workshop) -> None:
    same = FeatureSchema(shape=(2,), dtype="float32", offset=0.0, scale=1.0, classes=2)
    other = FeatureSchema(shape=(2,), dtype="float32", offset=0.0, scale=2.0, classes=2)
    with workshop.transaction() as session:
        first = repository.dataset_named(session, DATASET)
        assert define_dataset(session, name=DATASET, schema=same).id == first.id
        with pytest.raises(ConflictError):
            define_dataset(session, name=DATASET, schema=other)

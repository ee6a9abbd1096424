"""Datasets of typed columns: pushed, compared, erased and searched like all others."""

import datetime as dt

import pyarrow as pa
import pytest

from app.domain.errors import ConflictError, InvalidRecordsError
from app.domain.schema import TableSchema
from app.operations import erase_check
from app.operations.erase_check import Stores
from app.operations.storage_check import Finding, Verdict
from app.registry.datasets import repository
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import define_dataset, schema_of
from app.registry.datasets.shards import unpack
from tests.support.workshop import Workshop

PHOTOS = "photos"
SCHEMA = TableSchema.of(
    {
        "age": "int16?",
        "seq": "string",  # the name of a shard's own column
        "photo": "binary",
        "seen": "timestamp?",
        "words": "list<string>",
        "vector": "list<float32, 3>",
    },
    record_id="photo_id",
    subject_id="person",
)


def rows(numbers: range, **changed: list) -> pa.Table:
    """Return an export; ``changed`` replaces whole columns."""
    columns = {
        "photo_id": [f"photo-{i}" for i in numbers],
        "person": [f"person-{i // 2}" for i in numbers],
        "age": [None if i % 5 == 0 else i for i in numbers],
        "seq": [f"note {i}" for i in numbers],
        "photo": [b"\xff\xd8" + bytes([i]) * i for i in numbers],
        "seen": [dt.datetime(2026, 1, 1 + i % 20) for i in numbers],  # noqa: DTZ001 - UTC
        "words": [["a"] * (i % 3) for i in numbers],
        "vector": [[i, 0.5, -i] for i in numbers],
        "internal": [f"not kept {i}" for i in numbers],
    }
    return pa.table(columns | changed)


@pytest.fixture
def photos(workshop: Workshop) -> Workshop:
    """The workshop with ten more records, in a dataset of columns."""
    with workshop.transaction() as session:
        define_dataset(session, name=PHOTOS, schema=SCHEMA)
    assert workshop.services.records.push(PHOTOS, to_parquet(rows(range(10)))).added == 10
    return workshop


def stored(workshop: Workshop) -> pa.Table:
    """Return what all shards hold, in the order of pushing."""
    with workshop.transaction() as session:
        dataset = repository.dataset_named(session, PHOTOS)
        blobs = [shard.blob_id for shard in repository.shards(session, dataset.id)]
    parts = [unpack(workshop.services.blobs.read(blob)) for blob in blobs]
    for seqs, _ in parts:
        assert seqs.tolist() == sorted(seqs.tolist())
    return pa.concat_tables([held for _, held in parts])


def test_what_was_pushed_is_kept_but_no_ids_and_no_other_columns(photos: Workshop) -> None:
    held = stored(photos)
    assert held.column_names == SCHEMA.names
    assert held.to_pylist() == rows(range(10)).select(SCHEMA.names).to_pylist()


def test_the_next_export_adds_what_is_new_and_names_what_changed(photos: Workshop) -> None:
    photos.forget("photo-9", dataset=PHOTOS)
    later = range(2, 13)
    vectors = [[i, 0.5, -i] for i in later]
    vectors[1][2] = 7.0
    people = [f"person-{i // 2}" for i in later]
    people[2] = "person-0"
    ages = [None if i % 5 == 0 else i for i in later]
    ages[3] = 5  # it was missing
    export = to_parquet(rows(later, vector=vectors, person=people, age=ages))

    result = photos.services.records.push(PHOTOS, export)

    assert (result.added, result.already_present) == (4, 4)
    assert result.changed_rows == [1, 2, 3]
    assert stored(photos)["vector"].to_pylist()[3] == [3.0, 0.5, -3.0]  # it keeps what it has
    again = photos.services.records.push(PHOTOS, export)
    assert (again.added, again.already_present, again.changed_rows) == (0, 8, [1, 2, 3])


def test_faulty_rows_are_refused_whole_and_never_quoted(photos: Workshop) -> None:
    faulty = rows(range(20, 30), age=[40000, *range(9)])
    with pytest.raises(InvalidRecordsError) as refused:
        photos.services.records.push(PHOTOS, to_parquet(faulty))
    (problem,) = refused.value.problems
    assert (problem.row, problem.column) == (0, "age")
    assert problem.reason == "a whole number that is not int16 without loss"
    assert len(stored(photos)) == 10
    twice = rows(range(20, 22), photo_id=["same", "same"])
    with pytest.raises(InvalidRecordsError, match="'photo_id': is the same as in row 0"):
        photos.services.records.push(PHOTOS, to_parquet(twice))


def test_forgotten_rows_leave_the_shards(photos: Workshop) -> None:
    photos.forget(subjects=["person-1"], dataset=PHOTOS)
    photos.services.clean_up()
    left = stored(photos)
    assert left["seq"].to_pylist() == [f"note {i}" for i in range(10) if i // 2 != 1]
    assert left["photo"].to_pylist()[2] == b"\xff\xd8" + bytes([4]) * 4


@pytest.mark.parametrize("names_its_person", [True, False])
def test_an_id_within_the_columns_is_found(photos: Workshop, names_its_person: bool) -> None:
    """A text that quotes the person is no id, and nobody but its owner can know that it does."""
    notes = ["note of person-77" if names_its_person else "a note", "another note of person-7"]
    export = rows(range(70, 72), seq=notes, person=["person-77", "person-70"])
    photos.services.records.push(PHOTOS, to_parquet(export))
    findings: list[Finding] = []
    with photos.services.database.transaction():
        stores = Stores(
            photos.services.database,
            photos.services.blobs,
            _NoRedis(),
            photos.services.records.pseudonyms,
            photos.services.settings.data_dir / "log",
        )
    erase_check.check(stores, dataset=PHOTOS, owners_id="person-77", report=findings.append)
    faults = [finding.where for finding in findings if finding.verdict is Verdict.FAULT]
    assert [where.endswith("(shard, live)") for where in faults] == [True] * names_its_person


class _NoRedis:
    def scan_iter(self) -> list[bytes]:
        return []


def test_a_definition_is_fixed(photos: Workshop) -> None:
    other = TableSchema.of({"age": "int16"}, record_id="photo_id", subject_id="person")
    with photos.transaction() as session:
        assert schema_of(define_dataset(session, name=PHOTOS, schema=SCHEMA)) == SCHEMA
        with pytest.raises(ConflictError, match="another schema"):
            define_dataset(session, name=PHOTOS, schema=other)

"""Some records are read from the shards that hold them; no other shard is."""

import numpy as np
import pytest

from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.errors import GoneError
from app.registry.datasets import repository as datasets
from app.registry.datasets.files import record_table, to_parquet
from app.registry.datasets.service import define_dataset
from app.registry.datasets.tables import FeatureShardRow, ShardRow
from app.registry.membership import membership_at
from app.registry.training_set import TrainingSet
from app.storage.encryption import Chunks
from tests.support.arrays import array_schema, array_task
from tests.support.exact_heads import define_backbone
from tests.support.workshop import RECORDS, SCHEMA, Workshop
from workers.data.loading import load_model, readers_for
from workers.data.shards import read_records, read_shards
from workers.training.part import in_order
from workers.training.tasks.task import INPUTS, TARGET


@pytest.fixture
def workshop(workshop):
    """Three shards: two of the records 0 to 39 and 100 to 105, and one of 200 alone."""
    workshop.push(6, first=100)
    workshop.push(1, first=200)
    return workshop


@pytest.fixture(params=["records", "features"])
def model(workshop, request):
    backbone = None
    if request.param == "features":
        define_backbone(workshop)
        backbone = BackboneUse("public")
    workshop.define(
        architecture=ArchitectureSpec("ridge_head", backbone=backbone), mechanism="auto", recipe={}
    )
    return load_model(workshop.services, workshop.model().id)


@pytest.fixture
def opened(workshop, monkeypatch):
    """The ids of the shards whose records or features were read."""
    blobs, stored, ids = workshop.services.blobs, workshop.services.blobs._stored, set()

    def reading(blob_id):
        with workshop.transaction() as session:
            ids.update(row.id for row in session.query(ShardRow).filter_by(blob_id=blob_id))
            kept = session.query(FeatureShardRow).filter_by(blob_id=blob_id)
            ids.update(row.shard_id for row in kept)
        return stored(blob_id)

    monkeypatch.setattr(blobs, "_stored", reading)
    return ids


def shard_of(workshop, record_id):
    with workshop.transaction() as session:
        return workshop.record(session, record_id).shard_id


def read(workshop, model, *ids):
    return read_numbered(workshop, model, workshop.seqs(*ids))


def read_numbered(workshop, model, seqs):
    reader, wanted = readers_for(workshop.services, model).first, np.array(sorted(seqs), dtype=int)
    return read_records(workshop.services, model.dataset_id, reader, wanted)


def by_seq(parts):
    return {
        int(seq): (int(label), row.tobytes())
        for part in parts
        for seq, label, row in zip(
            part.seqs, part.tensors[TARGET], part.tensors[INPUTS], strict=True
        )
    }


def test_records_are_what_their_shards_hold(workshop, model):
    everything = by_seq(
        read_shards(
            workshop.services, model.dataset_id, readers_for(workshop.services, model).first
        )
    )
    ids = ("record-3", "record-101", "record-39")
    found = by_seq(read(workshop, model, *ids))
    assert len(everything) == RECORDS + 7
    assert found == {seq: everything[seq] for seq in workshop.seqs(*ids)}


@pytest.mark.parametrize("ids", [(), ("record-200",), ("record-3", "record-200", "record-5")])
def test_no_other_shard_is_read(workshop, model, opened, ids):
    found = by_seq(read(workshop, model, *ids))
    assert set(found) == workshop.seqs(*ids)
    assert opened == {shard_of(workshop, each) for each in ids}


def test_an_erased_record_is_missed(workshop, model):
    seqs = workshop.seqs("record-3", "record-4")
    workshop.forget("record-4")
    workshop.services.clean_up()
    assert read_numbered(workshop, model, seqs) is None
    assert set(by_seq(read(workshop, model, "record-3"))) == workshop.seqs("record-3")


def test_a_record_that_the_ledger_looks_for_elsewhere_is_missed(workshop, model):
    elsewhere = shard_of(workshop, "record-200")
    with workshop.transaction() as session:
        workshop.record(session, "record-3").shard_id = elsewhere
    assert read(workshop, model, "record-3") is None


def test_a_record_of_another_dataset_is_missed(workshop, model):
    def unread(shard_id, _wanted):
        raise AssertionError(f"{shard_id} is of another dataset")

    with workshop.transaction() as session:
        define_dataset(session, name="another", schema=SCHEMA)
        another = datasets.dataset_named(session, "another").id
    wanted = np.array([*workshop.seqs("record-3")])
    assert read_records(workshop.services, another, unread, wanted) is None


def test_a_shard_that_is_rewritten_meanwhile_is_read_again(workshop, model, monkeypatch):
    """The record that stays is found, in the shard as it is after the erasure."""
    blobs, stored = workshop.services.blobs, workshop.services.blobs._stored
    seqs = workshop.seqs("record-3")
    workshop.forget("record-4")

    def overtaken(blob_id):
        monkeypatch.setattr(blobs, "_stored", stored)
        workshop.services.clean_up()
        return stored(blob_id)

    monkeypatch.setattr(blobs, "_stored", overtaken)
    assert set(by_seq(read_numbered(workshop, model, seqs))) == seqs


def test_a_shard_that_keeps_changing_is_given_up(workshop, model, monkeypatch):
    def gone(_):
        raise GoneError("it was shredded")

    monkeypatch.setattr(workshop.services.blobs, "_stored", gone)
    with pytest.raises(GoneError, match="kept changing"):
        read(workshop, model, "record-3")


MANY, WIDTH, MEMBERS = 120_000, 20, 16


def test_what_a_member_needs_is_decrypted_and_little_else(services, monkeypatch):
    """Of a large shard: the records of one member of many, and those to be measured on."""
    with services.database.transaction() as session:
        define_dataset(session, name="large", schema=array_schema(WIDTH))
    numbers = np.arange(MANY)
    table = record_table(
        record_ids=np.char.add("record-", numbers.astype(str)),
        subject_ids=np.char.add("person-", (numbers // 2).astype(str)),
        labels=numbers % 2,
        features=np.random.default_rng(0).random((MANY, WIDTH), dtype=np.float32),
    )
    services.records.push("large", to_parquet(table))
    workshop = Workshop(services)
    network = ArchitectureSpec("mlp", {"hidden": [3]})
    workshop.define(
        dataset="large",
        architecture=ArchitectureSpec("ensemble", members=MEMBERS, of=network),
        task=array_task(WIDTH),
        recipe={"held_out_fraction": 0.1},
        mechanism="sharded_retraining",
    )
    with services.database.transaction() as session:
        row = workshop.model()
        through = datasets.highest_seq(session, row.dataset_id)
        found = TrainingSet(session, row, membership_at(row, through=through, after_epoch=0))
        wanted = in_order([found.held_out.retained, found.by_member([3])[3]])
        stored = datasets.stock_of(session, row.dataset_id).most_bytes
    read, decrypt = list[int](), Chunks.decrypt

    def noting(chunks, index, content):
        read.append(len(content))
        return decrypt(chunks, index, content)

    monkeypatch.setattr(Chunks, "decrypt", noting)
    model = load_model(services, row.id)
    parts = read_records(services, row.dataset_id, readers_for(services, model).first, wanted)

    assert np.array_equal(in_order(part.seqs for part in parts), wanted)
    share = len(wanted) / MANY
    assert 0.1 < share < 0.25
    assert sum(read) < 2.5 * share * stored < stored

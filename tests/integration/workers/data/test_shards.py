"""Some records are read from the shards that hold them; no other shard is."""

import numpy as np
import pytest

from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.errors import GoneError
from app.registry.datasets import repository as datasets
from app.registry.datasets.service import define_dataset
from app.registry.datasets.tables import FeatureShardRow, ShardRow
from tests.support.exact_heads import define_backbone
from tests.support.workshop import RECORDS, SCHEMA
from workers.data.loading import load_model, readers_for
from workers.data.shards import read_records, read_shards
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
    blobs, read_blob, ids = workshop.services.blobs, workshop.services.blobs.read, []

    def reading(blob_id):
        with workshop.transaction() as session:
            ids.extend(row.id for row in session.query(ShardRow).filter_by(blob_id=blob_id))
            kept = session.query(FeatureShardRow).filter_by(blob_id=blob_id)
            ids.extend(row.shard_id for row in kept)
        return read_blob(blob_id)

    monkeypatch.setattr(blobs, "read", reading)
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
    assert sorted(opened) == sorted({shard_of(workshop, each) for each in ids})


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
    blobs, read_blob = workshop.services.blobs, workshop.services.blobs.read
    seqs = workshop.seqs("record-3")
    workshop.forget("record-4")

    def overtaken(blob_id):
        monkeypatch.setattr(blobs, "read", read_blob)
        workshop.services.clean_up()
        return read_blob(blob_id)

    monkeypatch.setattr(blobs, "read", overtaken)
    assert set(by_seq(read_numbered(workshop, model, seqs))) == seqs


def test_a_shard_that_keeps_changing_is_given_up(workshop, model, monkeypatch):
    def gone(_):
        raise GoneError("it was shredded")

    monkeypatch.setattr(workshop.services.blobs, "read", gone)
    with pytest.raises(GoneError, match="kept changing"):
        read(workshop, model, "record-3")

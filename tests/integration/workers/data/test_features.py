"""A dataset as a frozen backbone sees it: computed once, and never from what was erased."""

import numpy as np
import pytest
import safetensors.torch
import torch

from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.errors import GoneError
from app.domain.tasks import catalogue
from app.operations.reconciliation import reconcile
from app.registry import backbones
from app.registry.backbones import BackboneDefinition
from app.registry.datasets import features as kept_features
from app.registry.datasets.columns.typed import kept_schema
from app.registry.datasets.tables import FeatureShardRow, ShardRow
from app.storage.tables import BlobRow
from tests.support.arrays import array_schema
from tests.support.workshop import RECORDS, TASK
from workers.data import features as features_module
from workers.data.backbone import FrozenBackbone, load_backbone
from workers.data.features import FeatureReader
from workers.data.loading import columns_by
from workers.data.shards import read_shards
from workers.training.examples import Examples
from workers.training.forms import InputForm
from workers.training.networks.architectures import build
from workers.training.part import Part
from workers.training.tasks.catalogue import encoder_of, task_of
from workers.training.tasks.task import INPUTS, TARGET
from workers.training.team import choose_device

MLP = ArchitectureSpec("mlp", {"hidden": [3]})
SPEC = catalogue.from_json(TASK)
SCHEMA = SPEC.schema()
DECODE = columns_by(encoder_of(SPEC, task_of(SPEC)), kept_schema(array_schema(2)))

FORM = InputForm.of(SCHEMA)
READING = "0" * 64


@pytest.fixture
def backbone(workshop):
    services = workshop.services
    public = build(MLP, input_shape=(2,), classes=2, allowed_factories=[]).state_dict()
    content = safetensors.torch.save(dict(public))
    with workshop.transaction() as session:
        backbones.define_backbone(
            session,
            BackboneDefinition("public", MLP, input_shape=(2,), classes=2, source="a test"),
        )
        backbones.upload_weights(session, services.blobs, "public", content)
    return loaded(services)


def loaded(services):
    spec = ArchitectureSpec("logistic", backbone=BackboneUse("public"))
    return load_backbone(services, spec, SCHEMA)


@pytest.fixture
def computed(monkeypatch):
    """Count the records that go through a backbone."""
    counts = []
    features = FrozenBackbone.features

    def counting(self, examples, *, device):
        counts.append(len(examples))
        return features(self, examples, device=device)

    monkeypatch.setattr(FrozenBackbone, "features", counting)
    return counts


def reader_by(workshop, backbone, **more):
    return FeatureReader(workshop.services, backbone, FORM, DECODE, reading_sha256=READING, **more)


def read(workshop, backbone, **more):
    with workshop.transaction() as session:
        dataset_id = session.query(kept_features.ShardRow).first().dataset_id
    return read_shards(workshop.services, dataset_id, reader_by(workshop, backbone, **more).read)


def seqs_of(parts):
    return {int(seq) for part in parts for seq in part.seqs}


def rows(workshop, kind=FeatureShardRow):
    with workshop.transaction() as session:
        return session.query(kind).all()


def erase(workshop, *records):
    workshop.forget(*records)
    workshop.services.clean_up()


def test_each_record_goes_through_the_backbone_once(workshop, backbone, computed):
    first = read(workshop, backbone)
    second = read(workshop, backbone)
    assert computed == [RECORDS]
    workshop.push(6, first=100)
    third = read(workshop, backbone)
    assert computed == [RECORDS, 6]
    assert len(rows(workshop)) == len(third) == 2
    np.testing.assert_array_equal(first[0].seqs, second[0].seqs)
    for name, mine in first[0].tensors.items():
        np.testing.assert_array_equal(mine, second[0].tensors[name])
    raw = torch.tensor([[i, -i] for i in range(RECORDS)], dtype=torch.float32)
    expected = backbone.network.cpu()(raw).detach().numpy()
    np.testing.assert_allclose(first[0].tensors[INPUTS], expected, rtol=2e-3)


def test_kept_features_survive_an_erasure_without_the_erased(workshop, backbone, computed):
    read(workshop, backbone)
    erased = workshop.seqs("record-3", "record-4")
    erase(workshop, "record-3", "record-4")
    parts = read(workshop, backbone)
    assert computed == [RECORDS]
    assert len(seqs_of(parts)) == RECORDS - 2
    assert not seqs_of(parts) & erased


def test_an_erasure_during_the_computation_leaves_no_trace_of_the_erased(
    workshop, backbone, computed
):
    """The worker has read the old shard and computes; the erasure commits; then it would keep."""
    erased = workshop.seqs("record-3")
    waiting = [lambda: erase(workshop, "record-3")]

    parts = read(workshop, backbone, check=lambda: waiting.pop()() if waiting else None)

    assert computed == [RECORDS, RECORDS - 1]
    assert not seqs_of(parts) & erased
    (row,) = rows(workshop)
    seqs = Part.of_bytes(workshop.services.blobs.read(row.blob_id)).seqs
    assert not {int(seq) for seq in seqs} & erased
    assert [blob.state for blob in rows(workshop, BlobRow) if blob.kind == "features"] == ["live"]


def test_an_erasure_between_looking_and_reading_is_noticed(workshop, backbone, monkeypatch):
    read(workshop, backbone)
    erased = workshop.seqs("record-3")
    look = kept_features.source_of
    waiting = [lambda: erase(workshop, "record-3")]

    def overtaken(session, *names, **more):
        source = look(session, *names, **more)
        if waiting:
            waiting.pop()()
        return source

    monkeypatch.setattr(features_module.features, "source_of", overtaken)
    parts = read(workshop, backbone)
    assert len(seqs_of(parts)) == RECORDS - 1
    assert not seqs_of(parts) & erased


def test_a_shard_that_never_holds_still_is_given_up(workshop, backbone, monkeypatch):
    monkeypatch.setattr(features_module.features, "add", lambda *_: False)
    with pytest.raises(GoneError, match="kept changing"):
        read(workshop, backbone)


def test_a_dataset_without_records_has_no_features(workshop, backbone):
    """Whether its run fails or its model is withdrawn is decided when the run begins."""
    erase(workshop, *(f"record-{i}" for i in range(RECORDS)))
    assert read(workshop, backbone) == []


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("how", ["read", "read_stored", "anew"])
def test_a_shard_that_was_erased_whole_since_it_was_named_is_empty(
    workshop, backbone, computed, how, stored
):
    if stored:
        read(workshop, backbone)
    (shard,) = rows(workshop, ShardRow)
    erase(workshop, *(f"record-{i}" for i in range(RECORDS)))
    of_shard = getattr(reader_by(workshop, backbone), how)
    for wanted in (None, np.arange(RECORDS)):
        assert not len(of_shard(shard.id, wanted).seqs)
    assert computed == [RECORDS] * stored


def test_a_shard_without_stored_features_holds_none_of_the_records_that_were_read(
    workshop, backbone
):
    (part,) = read(workshop, backbone)
    workshop.push(6, first=100)
    (pushed,) = {shard.id for shard in rows(workshop, ShardRow) if shard.rows == 6}
    reader = reader_by(workshop, backbone)
    assert not len(reader.read_stored(pushed, np.sort(part.seqs)).seqs)
    for wanted in (None, np.array(sorted(workshop.seqs("record-3", "record-101")))):
        with pytest.raises(GoneError):
            reader.read_stored(pushed, wanted)


def test_the_work_stops_when_the_run_must(workshop, backbone):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(workshop, backbone, check=stop)
    assert rows(workshop) == []


def test_weights_that_take_the_place_of_lost_ones_make_their_own_features(
    workshop, backbone, computed
):
    """Also if a worker that still has the lost ones stores features meanwhile."""
    read(workshop, backbone)
    other = build(MLP, input_shape=(2,), classes=2, allowed_factories=[]).state_dict()
    with workshop.transaction() as session:
        blob_id = backbones.backbone_named(session, "public").blob_id
    workshop.services.blobs._keys.destroy(blob_id)
    services = workshop.services
    with workshop.transaction() as session:
        found = reconcile(session, services.blobs, services.signer)
    assert any("upload its weights again" in line for line in found.attention)
    assert rows(workshop) == []
    with workshop.transaction() as session:
        content = safetensors.torch.save(dict(other))
        backbones.upload_weights(session, services.blobs, "public", content)
    read(workshop, backbone)  # by a worker that loaded the lost ones before
    present = loaded(services)
    (part,) = read(workshop, present)
    raw = np.array([[i, -i] for i in range(RECORDS)], dtype=np.float32)
    seen = Examples.of(FORM, {INPUTS: raw, TARGET: np.zeros(RECORDS, int)})
    expected = np.concatenate(list(present.stored(seen, device=choose_device())))
    np.testing.assert_array_equal(part.tensors[INPUTS], expected)
    assert sum(computed) == 3 * RECORDS + RECORDS

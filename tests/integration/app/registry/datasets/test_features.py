"""Features of a frozen backbone are kept like records and erased like records."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import select

from app.registry import backbones
from app.registry.datasets import features, repository
from app.registry.datasets.features import FeatureSource
from app.registry.datasets.tables import FeatureShardRow
from app.storage.tables import BlobRow
from tests.support.patience import PATIENCE_S
from tests.support.shards import decode_shard, encode_shard
from tests.support.weights import public_backbone
from tests.support.workshop import DATASET, RECORDS, Workshop

WEIGHTS = "5a" * 32
READING = "0b" * 32


@pytest.fixture
def backbone_id(workshop: Workshop) -> str:
    return _backbone(workshop, "public")


def _backbone(workshop: Workshop, name: str) -> str:
    with workshop.transaction() as session:
        return backbones.define_backbone(session, public_backbone(name)).id


def _source(workshop: Workshop, backbone_id: str) -> FeatureSource:
    with workshop.transaction() as session:
        dataset = repository.dataset_named(session, DATASET)
        (shard,) = repository.shards(session, dataset.id)
        return features.source_of(
            session,
            shard.id,
            backbone_id=backbone_id,
            weights_sha256=WEIGHTS,
            reading_sha256=READING,
        )


def _computed(workshop: Workshop, source: FeatureSource) -> bytes:
    seqs, labels, raw = decode_shard(workshop.services.blobs.read(source.shard_blob_id))
    tripled = np.concatenate([raw, raw, raw], axis=1).astype(np.float32)
    return encode_shard(seqs=seqs, labels=labels, features=tripled)


def _add(workshop: Workshop, source: FeatureSource, content: bytes) -> bool:
    with workshop.transaction() as session:
        return features.add(session, workshop.services.blobs, source, content)


def _kept(workshop: Workshop) -> list[FeatureShardRow]:
    with workshop.transaction() as session:
        return list(session.scalars(select(FeatureShardRow)))


def _feature_blobs(workshop: Workshop) -> list[str]:
    with workshop.transaction() as session:
        return list(session.scalars(select(BlobRow.state).where(BlobRow.kind == "features")))


def test_features_are_kept_once_per_shard_and_backbone(
    workshop: Workshop, backbone_id: str
) -> None:
    source = _source(workshop, backbone_id)
    assert source.features_blob_id is None
    content = _computed(workshop, source)

    assert _add(workshop, source, content)
    assert not _add(workshop, source, content)  # those that were first stay
    assert _add(workshop, _source(workshop, _backbone(workshop, "other")), content)
    others = {**source.made_by, "weights_sha256": "5b" * 32}
    assert _add(workshop, replace(source, made_by=others), content)

    assert len(_kept(workshop)) == 3
    assert _feature_blobs(workshop) == ["live", "live", "live"]
    kept = _source(workshop, backbone_id).features_blob_id
    assert workshop.services.blobs.read(kept) == content


def test_erasing_takes_the_records_out_of_every_backbones_features(
    workshop: Workshop, backbone_id: str
) -> None:
    source = _source(workshop, backbone_id)
    for backbone in (backbone_id, _backbone(workshop, "other")):
        source = _source(workshop, backbone)
        _add(workshop, source, _computed(workshop, source))
    before = [row.blob_id for row in _kept(workshop)]
    erased = workshop.seqs("record-3", "record-20", "record-21", "record-22", "record-23")
    workshop.forget("record-3", subjects=["subject-5"])

    workshop.services.clean_up()

    for row in _kept(workshop):
        seqs, labels, values = decode_shard(workshop.services.blobs.read(row.blob_id))
        assert len(seqs) == len(labels) == RECORDS - 5
        assert not set(seqs.tolist()) & erased
        assert not set(values[:, 2].tolist()) & {3.0, 20.0, 21.0, 22.0, 23.0}
        assert values.dtype == np.float32
    for blob in before:
        with pytest.raises(Exception, match="shredded"):
            workshop.services.blobs.read(blob)
    assert sorted(_feature_blobs(workshop)) == ["live", "live", "shredded", "shredded"]


def test_an_erasure_that_is_rolled_back_leaves_the_features_whole(
    workshop: Workshop, backbone_id: str
) -> None:
    source = _source(workshop, backbone_id)
    _add(workshop, source, _computed(workshop, source))
    workshop.forget("record-3")
    with workshop.transaction() as session:
        workshop.services.records.erase(session, list(workshop.seqs("record-3")))
        session.rollback()
    (row,) = _kept(workshop)
    assert len(decode_shard(workshop.services.blobs.read(row.blob_id))[0]) == RECORDS


def test_features_computed_before_an_erasure_are_not_kept_after_it(
    workshop: Workshop, backbone_id: str
) -> None:
    source = _source(workshop, backbone_id)
    stale = _computed(workshop, source)
    workshop.forget("record-3")
    workshop.services.clean_up()

    assert not _add(workshop, source, stale)

    assert _kept(workshop) == []
    assert _feature_blobs(workshop) == []  # never written, so there is nothing to shred
    fresh = _source(workshop, backbone_id)
    assert _add(workshop, fresh, _computed(workshop, fresh))


def test_keeping_features_waits_for_an_erasure_that_is_under_way(
    workshop: Workshop, backbone_id: str
) -> None:
    source = _source(workshop, backbone_id)
    stale = _computed(workshop, source)
    workshop.forget("record-3")
    workshop.forged = True  # this erasure is no completion, which would be logged
    added: list[bool] = []
    late = threading.Thread(target=lambda: added.append(_add(workshop, source, stale)), daemon=True)
    with workshop.transaction() as session:
        workshop.services.records.erase(session, list(workshop.seqs("record-3")))
        late.start()
        time.sleep(0.3)
        assert added == []
    late.join(PATIENCE_S)

    assert added == [False]
    assert _kept(workshop) == []

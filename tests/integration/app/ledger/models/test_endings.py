"""Archived: nothing is left but the proofs. Deleted: only what never released anything."""

from collections.abc import Callable

import pytest
from sqlalchemy import select

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import ConflictError, GoneError, LeaseLostError, NotFoundError
from app.domain.policy import Policy
from app.domain.states import WeightsSource
from app.ledger import runs
from app.ledger.models import definitions, endings
from app.registry import backbones
from app.registry.datasets import features
from app.registry.datasets import repository as datasets
from app.registry.datasets.service import define_dataset, schema_of
from app.storage.tables import BlobRow
from tests.support.logbook import faults
from tests.support.weights import WEIGHTS, public_backbone
from tests.support.workshop import (
    DATASET,
    RECIPE,
    RECORDS,
    TASK,
    Workshop,
    record_ids,
    records_parquet,
)


def _stored(workshop: Workshop) -> set[str]:
    """Return the kinds of objects that can still be read."""
    workshop.services.clean_up()
    with workshop.transaction() as session:
        return set(session.scalars(select(BlobRow.kind).where(BlobRow.state != "shredded")))


def _archive_dataset(workshop: Workshop) -> None:
    with workshop.transaction() as session:
        endings.archive_dataset(session, DATASET)


def _delete_model(workshop: Workshop, name: str = "model") -> None:
    with workshop.transaction() as session:
        endings.delete_model(session, name)


def test_an_archived_model_owes_nothing_and_its_run_publishes_nothing(workshop: Workshop) -> None:
    workshop.train()
    learned, _ = workshop.split()
    first = workshop.forget(learned[0])
    workshop.dispatch()
    held = workshop.begun()
    second = workshop.forget(learned[1])
    result = workshop.result(held)
    workshop.archive()

    for request in (first, second):
        (owed,) = workshop.obligations(request)
        assert (owed.state, owed.failure_reason) == ("cancelled", endings.ARCHIVED)
    run = workshop.run(held.run_id)
    assert (run.state, run.failure_reason) == ("cancelled", endings.ARCHIVED)
    with pytest.raises(LeaseLostError):
        workshop.publish(held, result)
    assert _stored(workshop) == {"shard"}
    assert {workshop.request(r).state for r in (first, second)} == {"completed"}
    assert workshop.obligations(workshop.forget(learned[2])) == []
    for again in (
        workshop.archive,
        lambda: runs.retry_run(workshop.services.database, held.run_id),
    ):
        with pytest.raises(GoneError, match="model 'model' was archived on"):
            again()
    with pytest.raises(ConflictError, match="exists already: it was archived, and keeps its name"):
        workshop.define()


def test_a_dataset_is_archived_after_its_models(workshop: Workshop) -> None:
    workshop.define("one")
    workshop.define("two")
    workshop.work("one")
    with pytest.raises(ConflictError, match="in use: archive or delete first one, two"):
        _archive_dataset(workshop)
    forgotten = workshop.forget("record-0")
    workshop.archive("one")
    _delete_model(workshop, "two")
    _archive_dataset(workshop)

    assert _stored(workshop) == set()
    assert workshop.request(forgotten).state == "completed"
    with workshop.transaction() as session:
        dataset = datasets.dataset_named(session, DATASET)
        assert datasets.counts(session, dataset.id) == (0, 0, RECORDS)
        (shard,) = datasets.shards(session, dataset.id)
        made_by = {
            "backbone_id": "backbone",
            "weights_sha256": "5a" * 32,
            "reading_sha256": "0b" * 32,
        }
        late = features.FeatureSource(shard.id, shard.blob_id, made_by, None)
        assert not features.add(session, workshop.services.blobs, late, b"records")
        schema = schema_of(dataset)
    for call in (
        lambda: workshop.push(1, first=RECORDS),
        lambda: workshop.define("three"),
        lambda: _archive_dataset(workshop),
    ):
        with pytest.raises(GoneError, match="dataset 'people' was archived on"):
            call()
    with workshop.transaction() as session, pytest.raises(GoneError):
        define_dataset(session, name=DATASET, schema=schema)
    later = workshop.forget("record-1")  # a person is told that nothing is left
    workshop.services.clean_up()
    assert workshop.request(later).state == "completed"


def test_a_push_that_an_archive_overtakes_leaves_nothing(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = workshop.services.records._write

    def overtaken(*arguments: object) -> int:
        first = write(*arguments)
        monkeypatch.undo()
        _archive_dataset(workshop)
        return first

    monkeypatch.setattr(workshop.services.records, "_write", overtaken)
    with pytest.raises(GoneError):
        workshop.push(1, first=RECORDS)
    assert _stored(workshop) == set()


def test_a_dataset_is_deleted_only_if_no_request_and_no_certificate_names_it(
    workshop: Workshop,
) -> None:
    with workshop.transaction() as session:
        schema = schema_of(datasets.dataset_named(session, DATASET))
        define_dataset(session, name="mistaken", schema=schema)
    workshop.services.records.push("mistaken", records_parquet(3))
    with workshop.transaction() as session:
        (shard,) = datasets.shards(session, datasets.dataset_named(session, "mistaken").id)
        blob_id = shard.blob_id
        endings.delete_dataset(session, "mistaken")
    workshop.services.clean_up()
    with pytest.raises(GoneError):
        workshop.services.blobs.read(blob_id)
    with pytest.raises(NotFoundError):
        workshop.services.records.push("mistaken", records_parquet(1))
    with workshop.transaction() as session:
        define_dataset(session, name="mistaken", schema=schema)
    assert workshop.services.records.push("mistaken", records_parquet(3)).added == 3

    workshop.forget(*record_ids(1), dataset="mistaken")
    with workshop.transaction() as session, pytest.raises(ConflictError, match="forget requests"):
        endings.delete_dataset(session, "mistaken")
    assert faults(workshop.services) == []


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_model_whose_first_training_ended_is_defined_again(workshop: Workshop, end: str) -> None:
    workshop.define()
    with pytest.raises(ConflictError, match="exists already"):
        workshop.define()
    held = workshop.lease()
    if end == "failed":
        workshop.give_up(held)
    else:
        with workshop.transaction() as session:
            runs.cancel_run(session, held.run_id)
    before = workshop.model().id
    workshop.define(mechanism="retraining")
    with pytest.raises(GoneError, match="was deleted"):
        runs.retry_run(workshop.services.database, held.run_id)
    assert workshop.model().id != before
    assert workshop.work().number == 1
    with pytest.raises(ConflictError, match="exists already"):
        workshop.define()


def test_only_what_never_released_is_deleted(workshop: Workshop) -> None:
    workshop.train("released")
    with pytest.raises(ConflictError, match="has released a version: archive it"):
        _delete_model(workshop, "released")
    workshop.train("private", first_release="none")
    workshop.define("running")
    held = workshop.begun("running")
    workshop.define("brought", upload=True)
    workshop.upload("brought")
    workshop.archive("released")
    with pytest.raises(GoneError, match="was archived on"):
        _delete_model(workshop, "released")
    for name in ("private", "running", "brought"):
        _delete_model(workshop, name)
        with pytest.raises(NotFoundError):
            workshop.model(name)
    assert workshop.run(held.run_id).failure_reason == endings.DELETED
    assert _stored(workshop) == {"shard"}
    request = workshop.forget(*record_ids(3))
    assert workshop.obligations(request) == []
    workshop.define("private")
    assert workshop.work("private").number == 1


def test_a_private_version_that_answered_a_request_is_not_deleted(workshop: Workshop) -> None:
    workshop.train(first_release="none")
    workshop.forget(workshop.split()[1][0])
    with pytest.raises(ConflictError, match="archive it"):
        _delete_model(workshop)


def test_a_backbone_in_use_stays(workshop: Workshop) -> None:
    blobs = workshop.services.blobs

    def attempt(end: Callable[..., object]) -> None:
        with workshop.transaction() as session:
            end(session, "public")

    with workshop.transaction() as session:
        backbones.define_backbone(session, public_backbone("public"))
        backbones.upload_weights(session, blobs, "public", WEIGHTS)
    architecture = {"name": "logistic", "backbone": {"name": "public", "frozen": False}}

    def define() -> None:
        definitions.define_model(
            workshop.services.database,
            definitions.ModelDefinition(
                name="model",
                dataset=DATASET,
                architecture=ArchitectureSpec.from_json(architecture),
                recipe=RECIPE.to_json(),
                policy=Policy(mechanism="retraining"),
                weights_source=WeightsSource.TRAIN,
                task=TASK,
            ),
        )

    define()
    workshop.work()
    for end in (endings.archive_backbone, endings.delete_backbone):
        with pytest.raises(ConflictError, match="in use: archive or delete first model"):
            attempt(end)
    workshop.archive()
    with pytest.raises(ConflictError, match="certificates of model: archive it"):
        attempt(endings.delete_backbone)
    attempt(endings.archive_backbone)
    assert _stored(workshop) == {"shard"}
    with pytest.raises(GoneError, match="backbone 'public' was archived on"):
        attempt(endings.archive_backbone)
    with workshop.transaction() as session, pytest.raises(GoneError):
        backbones.upload_weights(session, blobs, "public", WEIGHTS)

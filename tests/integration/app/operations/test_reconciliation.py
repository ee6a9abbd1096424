"""What a ledger gives up to agree with keys and objects, case by case."""

import shutil
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy import zeros
from sqlalchemy import Engine, func, select, text

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import ConfigurationError, KeyStoreError
from app.evidence.certificates.signing import StatementSigner, statement_of
from app.evidence.log import signing_keys
from app.evidence.log.tables import LogEntryRow
from app.ledger import repository
from app.ledger.certificates import issuing
from app.ledger.models import endings
from app.operations import reconciliation
from app.operations.reconciliation import Findings
from app.registry import backbones
from app.registry import repository as registry
from app.registry.datasets.tables import RecordRow, ShardRow
from app.registry.training_set import TrainingSet
from app.runtime.locations import key_store_dir, signing_key_file
from app.services import Services, open_services
from app.storage.stores import key_store
from app.storage.tables import BlobRow
from tests.support.key_keepers import EVERY
from tests.support.stored import pending
from tests.support.weights import WEIGHTS, public_backbone
from tests.support.workshop import RECORDS, Workshop

pytestmark = pytest.mark.parametrize("keeper", EVERY, indirect=True)

RECIPE = {"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25}
ONLY_ONCE: dict[str, Any] = {
    "architecture": "linear_head",
    "recipe": RECIPE,
    "mechanism": "noisy_gd_convex",
    "adaptive": True,
    "epsilon": 8.0,
    "parameters": {"earlier_releases": 4, "forgotten": 10, "unlearning_steps": 1},
}
"""A model whose next training would not count the releases of its first.

Each request needs a run, as the number of its steps is fixed.
"""


@pytest.fixture
def released(workshop: Workshop) -> Workshop:
    """A model with a version."""
    workshop.train()
    return workshop


def _reconcile(workshop: Workshop, services: Services | None = None) -> Findings:
    services = services or workshop.services
    with workshop.transaction() as session:
        return reconciliation.reconcile(session, services.blobs, services.signer)


def _destroy(workshop: Workshop, blob_id: str) -> None:
    workshop.services.blobs._keys.destroy(blob_id)


def _head_blob(workshop: Workshop) -> str:
    with workshop.transaction() as session:
        head = registry.head_version(session, registry.model_named(session, "model"))
        assert head is not None
        return head.blob_id


def _shard_blob(workshop: Workshop) -> str:
    with workshop.transaction() as session:
        return session.scalars(select(ShardRow.blob_id)).one()


def _learned_from(workshop: Workshop) -> set[int]:
    with workshop.transaction() as session:
        training_set = TrainingSet(session, registry.model_named(session, "model"))
        return set(training_set.records.seqs.tolist())


def test_where_all_agree_nothing_is_changed(released: Workshop) -> None:
    with released.transaction() as session:
        entries = session.scalar(select(func.count()).select_from(LogEntryRow))
    assert _reconcile(released).is_empty
    with released.transaction() as session:
        assert session.scalar(select(func.count()).select_from(LogEntryRow)) == entries


def test_without_a_key_store_nothing_is_concluded(released: Workshop, services: Services) -> None:
    shutil.rmtree(key_store_dir(services.settings) / "periods")
    with pytest.raises(KeyStoreError):
        _reconcile(released)
    with released.transaction() as session:
        head = registry.head_version(session, registry.model_named(session, "model"))
        assert head is not None
        assert head.state == "certified"


def test_with_the_key_store_of_another_service_nothing_is_concluded(
    released: Workshop, services: Services
) -> None:
    root = key_store_dir(services.settings)
    root.rename(root.with_name("mislaid"))
    key_store(services.settings, create=True)
    other = open_services(services.settings)
    with pytest.raises(ConfigurationError, match="not those of this ledger"):
        _reconcile(released, other)
    other.database.dispose()
    assert released.model().head_version_id is not None


def test_an_unreadable_version_is_retired_and_its_model_trained_anew(released: Workshop) -> None:
    blob_id = _head_blob(released)
    _destroy(released, blob_id)
    found = _reconcile(released)
    assert (found.versions, found.attention, found.orphans) == (["model 1"], [], set())
    released.services.clean_up()
    with released.transaction() as session:
        assert session.get_one(BlobRow, blob_id).state == "shredded"
    version = released.work()
    assert (version.number, version.state) == (2, "certified")
    assert _reconcile(released).is_empty


def test_a_missing_object_counts_like_a_missing_key(released: Workshop) -> None:
    released.services.blobs._objects.delete(_head_blob(released))
    assert _reconcile(released).versions == ["model 1"]


def test_records_of_a_lost_shard_count_as_forgotten_and_who_learned_from_them_is_retired(
    released: Workshop,
) -> None:
    _destroy(released, _shard_blob(released))
    found = _reconcile(released)
    assert (found.shards_lost, found.records_forgotten) == (1, RECORDS)
    assert found.versions == ["model 1"]
    assert any("records of a shard are lost" in what for what in found.attention)
    with released.transaction() as session:
        assert (
            session.scalars(select(RecordRow.seq).where(RecordRow.erased_at.is_(None))).all() == []
        )
    released.services.clean_up()
    assert _reconcile(released).is_empty


def test_what_was_archived_after_the_backup_is_trained_anew_until_it_is_archived_again(
    released: Workshop,
) -> None:
    weights, shard = _head_blob(released), _shard_blob(released)
    released.push(2, first=100)
    _destroy(released, weights)
    assert _reconcile(released).versions == ["model 1"]
    assert released.active_run() is not None
    released.archive()
    assert released.active_run() is None
    _destroy(released, shard)  # its dataset was archived, too
    found = _reconcile(released)
    assert (found.versions, found.records_forgotten) == ([], RECORDS)
    with released.transaction() as session:
        endings.archive_dataset(session, "people")
    released.services.clean_up()
    with released.transaction() as session:
        states = {session.get_one(BlobRow, blob_id).state for blob_id in (weights, shard)}
    assert states == {"shredded"}
    assert _reconcile(released).is_empty


def test_a_run_that_goes_is_ended_and_nothing_is_owed_where_no_weights_are_left(
    released: Workshop,
) -> None:
    learned, _ = released.split()
    request = released.forget(learned[0])
    released.dispatch()
    held = released.begun()
    _destroy(released, _head_blob(released))
    assert _reconcile(released).versions == ["model 1"]
    assert released.run(held.run_id).state == "cancelled"
    assert [owed.state for owed in released.obligations(request)] == ["cancelled"]
    released.services.clean_up()
    assert released.request(request).state == "completed"
    released.work()
    assert released.seqs(learned[0]).isdisjoint(_learned_from(released))


@pytest.mark.parametrize("kind", ["noisy_gd_convex", "upload", "lost before"])
def test_a_model_whose_weights_are_lost_keeps_no_request_waiting(
    workshop: Workshop, kind: str
) -> None:
    if kind in ("upload", "lost before"):
        workshop.define(upload=True)
        workshop.upload("model")
    else:
        workshop.define(**ONLY_ONCE)
    if kind == "lost before":
        held = workshop.begun()
    else:
        workshop.work()
    learned, _ = workshop.split()
    failed = workshop.forget(learned[0])
    if kind != "lost before":
        workshop.dispatch()
        held = workshop.begun()
        workshop.give_up(held)
    waits = workshop.forget(learned[1])
    lost = workshop.model().imported_blob_id or _head_blob(workshop)
    _destroy(workshop, lost)
    assert len(_reconcile(workshop).attention) == 1
    later = workshop.forget(learned[2])
    workshop.dispatch()
    workshop.services.clean_up()
    assert workshop.active_run() is None
    assert {workshop.request(i).state for i in (failed, waits, later)} == {"completed"}


@pytest.mark.parametrize("mechanism", ["tracked_release", "dp_sgd"])
def test_a_lineage_whose_training_is_counted_is_trained_anew(
    workshop: Workshop, mechanism: str
) -> None:
    head = {"architecture": "linear_head", "recipe": RECIPE} if mechanism != "dp_sgd" else {}
    workshop.train(mechanism=mechanism, epsilon=8.0, **head)
    learned, _ = workshop.split()
    request = workshop.forget(learned[0])
    _destroy(workshop, _head_blob(workshop))
    assert _reconcile(workshop).attention == []
    assert workshop.request(request).state == "certified"
    assert workshop.work().number == 2
    assert workshop.seqs(learned[0]).isdisjoint(_learned_from(workshop))


def test_an_uploaded_model_waits_for_its_weights_and_takes_them(workshop: Workshop) -> None:
    workshop.define(upload=True)
    content = safetensors.numpy.save({"w": zeros(2)})
    workshop.upload("model", content)
    workshop.work()
    _destroy(workshop, _head_blob(workshop))
    assert _reconcile(workshop).attention == ["model 'model': upload its weights again"]
    assert workshop.active_run() is None
    workshop.upload("model", content)
    assert workshop.work().number == 2


def test_imported_weights_that_are_lost_before_they_were_certified_can_come_again(
    workshop: Workshop,
) -> None:
    workshop.define(upload=True)
    _destroy(workshop, workshop.upload("model"))
    workshop.give_up(workshop.lease())
    found = _reconcile(workshop)
    assert (found.other_objects, found.versions) == (1, [])
    workshop.upload("model")
    assert workshop.active_run() is not None


def test_a_lineage_that_cannot_be_planned_again_is_named(workshop: Workshop) -> None:
    workshop.train(**ONLY_ONCE)
    _destroy(workshop, _head_blob(workshop))
    found = _reconcile(workshop)
    assert found.versions == ["model 1"]
    assert found.attention == ["model 'model': define it again under another name"]
    assert workshop.active_run() is None


def test_what_the_ledger_does_not_know_is_told_and_can_be_shredded(
    released: Workshop, app_database: Engine
) -> None:
    blobs = released.services.blobs
    orphan = pending(blobs, "weights", b"released after the backup").id
    with app_database.begin() as connection:
        connection.execute(text("DELETE FROM blobs WHERE id = :id"), {"id": orphan})
    assert _reconcile(released).orphans == {orphan}
    blobs.shred_orphan(orphan)
    assert orphan not in set(blobs._objects.names())
    assert _reconcile(released).is_empty


def test_a_ledger_from_before_a_rotation_takes_the_present_signing_key(
    released: Workshop, services: Services
) -> None:
    path = signing_key_file(services.settings)
    path.unlink()
    StatementSigner.from_file(path, create=True)
    after_rotation = open_services(services.settings)
    with released.transaction() as session:
        assert not signing_keys.may_sign(session, after_rotation.signer)
        found = reconciliation.reconcile(session, after_rotation.blobs, after_rotation.signer)
    assert found.signing_key_replaced
    with released.transaction() as session:
        assert signing_keys.is_in_use(session, after_rotation.signer)
        assert not signing_keys.is_in_use(session, services.signer)
    after_rotation.checkpoint_log()
    after_rotation.database.dispose()


def test_it_is_an_entry_of_the_log(released: Workshop) -> None:
    _destroy(released, _head_blob(released))
    _reconcile(released)
    with released.transaction() as session:
        kinds = session.scalars(select(LogEntryRow.kind).order_by(LogEntryRow.index)).all()
        run = repository.active_run(session, registry.model_named(session, "model").id)
    assert {"ledger.reconciled", "version.retired"} <= set(kinds[-4:])
    assert run is not None
    assert run.kind == "train"


def test_who_was_held_out_is_answered_by_the_backbone_that_the_version_stands_on(
    workshop: Workshop,
) -> None:
    """Also while the backbone is lost, and when other weights have taken its place."""
    blobs = workshop.services.blobs
    with workshop.transaction() as session:
        backbones.define_backbone(session, public_backbone("public"))
        row = backbones.upload_weights(session, blobs, "public", WEIGHTS)
        lost, before = row.blob_id, row.sha256
    own = {"name": "logistic", "backbone": {"name": "public", "frozen": False}}
    workshop.train(architecture=ArchitectureSpec.from_json(own), mechanism="retraining")
    held_out = workshop.split()[1]
    assert lost is not None
    _destroy(workshop, lost)
    _reconcile(workshop)

    requests = [workshop.forget(held_out[0])]
    with workshop.transaction() as session:
        other = safetensors.numpy.save({"weight": np.ones((2, 2), np.float32)})
        backbones.upload_weights(session, blobs, "public", other)
    requests.append(workshop.forget(held_out[1]))
    for request in requests:
        (owed,) = workshop.obligations(request)
        with workshop.transaction() as session:
            certificate = issuing.certificate(session, owed.certificate_id or "")
        stated = statement_of(certificate.envelope)["predicate"]
        assert stated["backbone"]["sha256"] == before

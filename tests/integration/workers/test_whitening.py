"""Whitened backbones: what is computed, what certificates say of it, and what public means."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from sqlalchemy.exc import ProgrammingError
from threadpoolctl import threadpool_limits

from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.architectures.backbone import BackboneUse, definition_digest
from app.domain.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PublicDatasetError,
    RunFailedError,
    RunInterruptedError,
)
from app.domain.schema import FeatureSchema
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.tables import CertificateRow
from app.ledger.models import endings, whitening
from app.ledger.models.whitening import WhiteningDefinition
from app.ledger.new_requests import NewForgetRequest
from app.registry.backbones import repository as backbones
from app.registry.backbones import service as uploads
from app.registry.backbones.tables import BackboneRow
from app.registry.datasets.files import record_table, to_parquet
from app.registry.datasets.service import define_dataset
from app.registry.datasets.tables import FeatureShardRow
from tests.support.exact_heads import carry_out, define_backbone, released
from tests.support.logbook import faults
from tests.support.workshop import Workshop
from workers import jobs
from workers.data.backbone_loading import load_backbone, load_frozen
from workers.data.whitening import Moments, whiten
from workers.recompute import recompute
from workers.training.device import choose_device
from workers.training.examples import Examples
from workers.training.forms import FeatureForm
from workers.training.tasks.task import INPUTS, TARGET

SCHEMA = FeatureSchema(shape=(8,), dtype="float32", offset=0.5, scale=2.0, classes=2)
NUMBERS = np.random.default_rng(11)
FEATURES = (NUMBERS.normal(size=(120, 8)) * [1, 2, 3, 4, 5, 6, 7, 8]).astype(np.float32)
LABELS = NUMBERS.integers(0, 2, size=120)
PUBLIC, PRIVATE = range(80), range(80, 120)


def define(workshop, name, *, public, schema=SCHEMA):
    with workshop.transaction() as session:
        define_dataset(session, name=name, schema=schema, public=public)


def push(workshop, name, numbers):
    table = record_table(
        record_ids=[f"{name}-{i}" for i in numbers],
        subject_ids=[f"person-{i}" if name == "private" else "the same person" for i in numbers],
        labels=LABELS[list(numbers)],
        features=FEATURES[list(numbers)],
    )
    workshop.services.records.push(name, to_parquet(table))


@pytest.fixture
def workshop(services):
    workshop = Workshop(services)
    define(workshop, "open", public=True)
    push(workshop, "open", PUBLIC)
    define(workshop, "private", public=False)
    push(workshop, "private", PRIVATE)
    define_backbone(workshop, "base", hidden=(12, 9), shape=(8,))
    return workshop


def ask(workshop, **more):
    asked = WhiteningDefinition(**{"name": "white", "base": "base", "dataset": "open", **more})
    with workshop.transaction() as session:
        return whitening.define(session, asked).id


def row_of(workshop, name="white"):
    with workshop.transaction() as session:
        return backbones.backbone_named(session, name)


def whitened(workshop, **more):
    whiten(workshop.services, ask(workshop, **more), check=lambda: None)
    return row_of(workshop, more.get("name", "white"))


def raw_features(workshop, numbers):
    base = load_frozen(workshop.services, row_of(workshop, "base"), SCHEMA)
    return features_by(base, numbers)


def features_by(backbone, numbers):
    records = Examples.of(
        FeatureForm.of(SCHEMA), {INPUTS: FEATURES[list(numbers)], TARGET: LABELS[list(numbers)]}
    )
    return np.concatenate(
        [part.numpy() for part in backbone.features(records, device=choose_device())]
    )


# What is computed


@pytest.mark.parametrize("exponent", [0.0, 0.35, 0.5])
def test_the_features_are_those_of_the_formula(workshop, exponent):
    row = whitened(workshop, exponent=exponent)
    backbone = load_frozen(workshop.services, row, SCHEMA)
    public = raw_features(workshop, PUBLIC).astype(np.float64)
    eigenvalues, vectors = np.linalg.eigh(np.cov(public.T, bias=True))
    eigenvalues = eigenvalues.clip(0)
    transform = vectors * (eigenvalues + 1e-3 * eigenvalues.mean()) ** -exponent
    transform /= np.sqrt((public @ transform).var(axis=0).mean())
    expected = (raw_features(workshop, PRIVATE) - public.mean(axis=0)) @ transform
    found = features_by(backbone, PRIVATE)
    # The signs of eigenvectors are free.
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, rtol=1e-3, atol=1e-3)
    assert features_by(backbone, PUBLIC).var(axis=0).mean() == pytest.approx(1, rel=1e-3)
    assert np.abs(features_by(backbone, PUBLIC).mean(axis=0)).max() < 1e-4


def test_moments_do_not_depend_on_the_parts_or_a_large_offset(workshop):
    features = raw_features(workshop, PUBLIC) + np.float32(1000)
    whole, parts = Moments(9), Moments(9)
    whole.add(features)
    for start in range(0, 80, 7):
        parts.add(features[start : start + 7])
    for first, second in zip(whole.whitening(0.35), parts.whitening(0.35), strict=True):
        np.testing.assert_allclose(np.abs(first), np.abs(second), rtol=1e-6, atol=1e-6)


def test_the_same_records_give_the_same_bits_whatever_the_number_of_threads():
    """Models go on only if weights that were lost come again as they were."""
    random = np.random.default_rng(3)
    mixed = random.normal(size=(600, 600))
    parts = [(random.normal(size=(32, 600)) @ mixed).astype(np.float32) for _ in range(40)]
    made = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            moments = Moments(600)
            for part in parts:
                moments.add(part)
            made.append(moments.whitening(0.35))
    for one, other in zip(*made, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_digest_is_of_the_contents_and_can_be_computed_by_who_has_the_data(workshop):
    used = whitened(workshop).whitening
    schema = (
        '{"classes":2,"dtype":"float32","offset":0.5,"scale":2.0,"shape":[8],"vocabulary":null}'
    )
    records = sorted(
        hashlib.sha256(int(LABELS[i]).to_bytes(8, "little") + FEATURES[i].tobytes()).digest()
        for i in PUBLIC
    )
    expected = hashlib.sha256(schema.encode() + b"\n" + b"".join(records)).hexdigest()
    assert (used["dataset_sha256"], used["records"]) == (expected, 80)
    define(workshop, "again", public=True)
    push(workshop, "again", range(40, 80))
    push(workshop, "again", range(40))
    assert whitened(workshop, name="other", dataset="again").whitening == used | {
        "dataset": "again"
    }


def test_the_weights_cover_base_mean_and_transform_and_the_base_is_as_it_was(workshop):
    before = row_of(workshop, "base").sha256
    row = whitened(workshop)
    content = workshop.services.blobs.read(row.blob_id)
    assert hashlib.sha256(content).hexdigest() == row.sha256
    tensors = safetensors.numpy.load(content)
    base = safetensors.numpy.load(workshop.services.blobs.read(row_of(workshop, "base").blob_id))
    assert tensors.keys() == {
        *(f"base.{name}" for name in base),
        "whitening.mean",
        "whitening.transform",
    }
    assert row_of(workshop, "base").sha256 == before == row.whitening["base_sha256"]
    assert faults(workshop.services) == []


# What certificates say of it


@pytest.mark.parametrize("head", ["ridge_head", "linear_head"])
def test_a_model_on_it_says_which_public_data_and_forgets_exactly(workshop, head):
    used = whitened(workshop)
    workshop.define(
        dataset="private",
        architecture=ArchitectureSpec(head, backbone=BackboneUse("white")),
        recipe={"held_out_fraction": 0.25},
        mechanism="auto",
    )
    carry_out(workshop)
    membership = workshop.membership()
    ids = [f"private-{i}" for i in PRIVATE]
    with workshop.transaction() as session:
        held_out = [
            i for i in ids if membership.is_held_out(workshop.record(session, i, "private"))
        ]
    workshop.forget(held_out[0], dataset="private")
    workshop.forget(next(i for i in ids if i not in held_out), dataset="private")
    push(workshop, "open", range(80, 100))  # what was used is what the digest says
    workshop.dispatch()
    carry_out(workshop)
    assert recompute(workshop.services, "model").is_equal
    with workshop.transaction() as session:
        certificates = session.query(CertificateRow).order_by(CertificateRow.number).all()
        predicates = [statement_of(each.envelope)["predicate"] for each in certificates]
    stated = {
        "name": "white",
        "sha256": used.sha256,
        "definition": definition_digest(
            architecture=used.architecture,
            layers=(),
            input_shape=used.input_shape,
            classes=used.classes,
        ),
        "frozen": True,
        "whitening": used.whitening,
    }
    assert len(predicates) == 3
    for predicate in predicates:
        assert predicate["backbone"] == stated
        assert any(
            "are public: nobody can ask" in each["statement"] and each["support"] == "asserted"
            for each in predicate["assumptions"]
        )
    assert "backbone.whitening.transform" in safetensors.numpy.load(released(workshop))
    assert faults(workshop.services) == []


# What public means


def test_records_of_a_public_dataset_are_not_forgotten(workshop):
    for named in ({"record_ids": ["open-3"]}, {"subject_ids": ["the same person"]}):
        with workshop.transaction() as session:
            asked = NewForgetRequest("open", **named)
            with pytest.raises(PublicDatasetError, match="nobody can ask"):
                workshop.services.acceptance.submit(session, asked, api_key_id=workshop.key_id)
    assert row_of(workshop, "base") is not None
    with workshop.transaction() as session:
        assert (
            session.connection()
            .exec_driver_sql("SELECT count(*) FROM records WHERE forgotten_epoch IS NOT NULL")
            .scalar_one()
            == 0
        )


def test_a_dataset_never_becomes_public_nor_ceases_to_be(workshop):
    for name, public in (("private", True), ("open", False)):
        with pytest.raises(ConflictError, match="that never changes"):
            define(workshop, name, public=public)
        with workshop.transaction() as session, pytest.raises(ProgrammingError, match="settled"):
            session.connection().exec_driver_sql(
                f"UPDATE datasets SET public = NOT public WHERE name = '{name}'"
            )


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"dataset": "private"}, ConflictError, "is not public"),
        ({"dataset": "nothing"}, NotFoundError, "nothing"),
        ({"base": "nothing"}, NotFoundError, "nothing"),
        ({"name": "base"}, ConflictError, "exists already"),
        ({"exponent": 1.5}, InvalidInputError, "from 0 to 1"),
        ({"exponent": float("nan")}, InvalidInputError, "from 0 to 1"),
        ({"dataset": "people"}, ConflictError, "is not public"),
        ({"dataset": "narrow"}, InvalidInputError, "features of shape"),
        ({"base": "first"}, InvalidInputError, "whitened already"),
        ({"base": "empty"}, ConflictError, "no weights yet"),
    ],
)
def test_what_cannot_be_whitened_is_refused_at_once(workshop, change, error, reason):
    define(workshop, "narrow", public=True, schema=replace(SCHEMA, shape=(3,)))
    ask(workshop, name="first")
    with workshop.transaction() as session:
        spec = ArchitectureSpec("mlp", {"hidden": [2]})
        uploads.define_backbone(
            session, uploads.BackboneDefinition("empty", spec, (8,), classes=2, source="a test")
        )
    with pytest.raises(error, match=reason):
        ask(workshop, **change)


def test_its_weights_are_neither_uploaded_nor_trained_on(workshop):
    ask(workshop)
    with workshop.transaction() as session, pytest.raises(ConflictError, match="computed"):
        uploads.upload_weights(session, workshop.services.blobs, "white", b"")
    head = {"dataset": "private", "mechanism": "auto"}
    spec = ArchitectureSpec("ridge_head", backbone=BackboneUse("white"))
    with pytest.raises(ConflictError, match="no weights yet: wait"):
        workshop.define(architecture=spec, recipe={}, **head)
    whiten(workshop.services, row_of(workshop).id, check=lambda: None)
    trained = ArchitectureSpec("mlp", {"hidden": [12, 9]}, backbone=BackboneUse("white", False))
    with pytest.raises(InvalidInputError, match="leave frozen true"):
        workshop.define(architecture=trained, dataset="private")


# Workers that fail, stop or come twice


def test_nothing_that_differs_is_said_so_and_not_tried_again(workshop, monkeypatch):
    define(workshop, "one", public=True)
    push(workshop, "one", [0])
    monkeypatch.setattr(jobs, "open_services", lambda *_, **__: workshop.services)
    monkeypatch.setattr(workshop.services.database, "dispose", lambda: None)
    backbone_id = ask(workshop, dataset="one")
    jobs.whiten_backbone(backbone_id)
    assert "fewer than two records" in row_of(workshop).failure
    with workshop.transaction() as session:
        assert whitening.waiting(session) == []
        endings.delete_backbone(session, "white")
    assert faults(workshop.services) == []


def test_an_interrupted_attempt_does_not_count_and_a_dead_one_does(workshop, monkeypatch):
    monkeypatch.setattr(jobs, "open_services", lambda *_, **__: workshop.services)
    monkeypatch.setattr(workshop.services.database, "dispose", lambda: None)
    backbone_id = ask(workshop)

    def interrupted(*_, **__):
        raise RunInterruptedError("the worker was asked to stop")

    with monkeypatch.context() as patched:
        patched.setattr(jobs, "whiten", interrupted)
        for _ in range(10):
            jobs.whiten_backbone(backbone_id)
    assert (row_of(workshop).attempts, row_of(workshop).failure) == (0, None)
    most = workshop.services.settings.max_attempts
    for _ in range(most):
        with workshop.transaction() as session:
            assert whitening.begin(session, backbone_id, max_attempts=most)
    jobs.whiten_backbone(backbone_id)
    assert "died" in row_of(workshop).failure


def test_two_workers_store_it_once(workshop):
    backbone_id = ask(workshop)
    whiten(workshop.services, backbone_id, check=lambda: None)
    first = row_of(workshop)
    whiten(workshop.services, backbone_id, check=lambda: None)
    assert row_of(workshop).blob_id == first.blob_id
    assert faults(workshop.services) == []


def test_a_dataset_that_is_not_public_is_refused_by_the_worker_too(workshop):
    base = row_of(workshop, "base")
    with workshop.transaction() as session:
        copied = ("architecture", "input_shape", "classes", "layers", "source")
        session.add(
            BackboneRow(
                id="bb_forged",
                name="forged",
                base_id=base.id,
                public_dataset="private",
                exponent=0.35,
                **{name: getattr(base, name) for name in copied},
            )
        )
    with pytest.raises(RunFailedError, match="not public"):
        whiten(workshop.services, "bb_forged", check=lambda: None)


def test_an_archived_public_dataset_leaves_the_whitening_as_it_is(workshop):
    row = whitened(workshop)
    with workshop.transaction() as session:
        endings.archive_dataset(session, "open")
    spec = ArchitectureSpec("ridge_head", backbone=BackboneUse("white"))
    assert load_backbone(workshop.services, spec, SCHEMA).sha256 == row.sha256
    assert faults(workshop.services) == []
    assert json.dumps(row.whitening)
    with workshop.transaction() as session:
        assert session.query(FeatureShardRow).count() == 0

"""Models on a public base: what is released, what is certified, and whose base it may be."""

import json

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn

import expunge
from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.errors import InvalidInputError, VerificationError
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.verification import check_statement
from app.ledger.certificates import issuing
from app.operations.reconciliation import reconcile
from app.registry import backbones
from app.registry import repository as registry
from app.registry.backbones import BackboneDefinition, backbone_named
from tests.support.operators import PACKAGE, operators_package
from workers import jobs
from workers import run as run_module
from workers.training.networks.architectures import build

OWN = ArchitectureSpec("custom", {}, f"{PACKAGE}:build")
BASE = ["0.bias", "0.weight", "mask"]


class Adapted(nn.Sequential):
    """A public layer, whose numbers are all ``value``, and a head to train."""

    def __init__(self, value=1.0):
        super().__init__(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
        for tensor in self[0].parameters():
            nn.init.constant_(tensor, value).requires_grad_(requires_grad=False)
        self.register_buffer("mask", torch.ones(2), persistent=False)

    def forward(self, features):
        return super().forward(features * self.mask)


@pytest.fixture
def workshop(workshop, monkeypatch):
    monkeypatch.setenv("EXPUNGE_ALLOWED_FACTORIES", json.dumps([f"{PACKAGE}:*"]))
    return workshop


@pytest.fixture
def package(monkeypatch):
    module = operators_package(monkeypatch)
    module.build = lambda **_: Adapted()
    return module


def carry_out(workshop):
    run_id = workshop.active_run()
    jobs.execute_run(run_id)
    return workshop.run(run_id)


def next_run(workshop, package, monkeypatch, *, build):
    """Publish a model, and return its next run, with another network; it may read no record."""
    workshop.define(architecture=OWN)
    assert carry_out(workshop).state == "published"
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    package.build = build
    monkeypatch.setattr(run_module, "load_records", lambda *_, **__: pytest.fail("read records"))
    return carry_out(workshop)


def published(workshop):
    """Return the newest version's certificate, its payload and its weights' file."""
    with workshop.transaction() as session:
        model = registry.model_named(session, "model")
        head = registry.head_version(session, model)
        statement = statement_of(issuing.certificate(session, head.certificate_id).envelope)
        return statement, workshop.services.blobs.read(head.blob_id)


def test_only_what_was_trained_is_released_and_the_base_is_named_by_digest(
    workshop, package, tmp_path
):
    workshop.define(architecture=OWN)
    run = carry_out(workshop)
    assert run.state == "published", run.failure_reason
    statement, content = published(workshop)
    predicate = statement["predicate"]
    assert set(safetensors.numpy.load(content)) == {"2.weight", "2.bias"}
    assert predicate["mechanism"]["tensors"] == ["2.bias", "2.weight"]
    assert predicate["mechanism"]["parameters"]["dimension"] == 10
    assert predicate["base"]["tensors"] == BASE
    digest = predicate["base"]["sha256"]
    (said,) = [a for a in predicate["assumptions"] if digest in a["statement"]]
    assert said["support"] == "asserted"

    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    assert carry_out(workshop).state == "published"
    statement, content = published(workshop)
    assert statement["predicate"]["basis"] == "unlearned"
    assert statement["predicate"]["base"] == predicate["base"]

    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    model = expunge.load(path, check=False, factories=[f"{PACKAGE}:build"])
    assert model(torch.ones(3, 2)).shape == (3, 2)
    package.build = lambda **_: Adapted(2.0)
    with pytest.raises(InvalidInputError, match="not the base that the file names"):
        expunge.load(path, check=False, factories=[f"{PACKAGE}:build"])
    base = tmp_path / "base.safetensors"
    kept = {name: tensor.numpy() for name, tensor in Adapted().state_dict().items()}
    safetensors.numpy.save_file(kept, base)
    again = expunge.load(path, check=False, factories=[f"{PACKAGE}:build"], base=base)
    assert torch.equal(again(torch.ones(3, 2)), model(torch.ones(3, 2)))


def test_a_statement_that_does_not_fit_the_file_is_refused(workshop, package):
    workshop.define(architecture=OWN)
    carry_out(workshop)
    statement, content = published(workshop)
    check_statement(json.dumps(statement).encode(), weights=content)
    predicate = statement["predicate"]
    lies = [
        {name: value for name, value in predicate.items() if name != "base"},
        predicate | {"base": {**predicate["base"], "sha256": "5a" * 32}},
        predicate | {"base": {**predicate["base"], "tensors": BASE[:2]}},
        predicate | {"base": {**predicate["base"], "tensors": [*BASE, "2.bias"]}},
        predicate | {"base": {**predicate["base"], "tensors": BASE[::-1]}},
    ]
    for lie in lies:
        payload = json.dumps(statement | {"predicate": lie}).encode()
        with pytest.raises(VerificationError):
            check_statement(payload, weights=content)


@pytest.mark.parametrize(
    "other",
    [
        lambda **_: Adapted(2.0),
        lambda **_: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)),
    ],
    ids=["trained", "none"],
)
def test_a_base_that_changed_between_two_runs_reads_no_record(
    workshop, package, monkeypatch, other
):
    """It may have been trained on records in between: by hand, or taken from a version."""
    run = next_run(workshop, package, monkeypatch, build=other)
    assert run.state == "failed"
    assert "not those that the model's certificates name" in run.failure_reason


def test_a_backbone_that_took_the_place_of_a_lost_one_reads_no_record(workshop, monkeypatch):
    services = workshop.services
    public = BackboneDefinition(
        "public", ArchitectureSpec("mlp", {"hidden": [3]}), input_shape=(2,), classes=2, source="us"
    )
    with workshop.transaction() as session:
        backbones.define_backbone(session, public)
    bring(workshop)
    workshop.define(architecture=ArchitectureSpec("logistic", backbone=BackboneUse("public")))
    assert carry_out(workshop).state == "published"
    with workshop.transaction() as session:
        services.blobs._keys.destroy(backbone_named(session, "public").blob_id)
        reconcile(session, services.blobs, services.signer)
    bring(workshop)
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    monkeypatch.setattr(run_module, "load_records", lambda *_, **__: pytest.fail("read records"))
    run = carry_out(workshop)
    assert run.state == "failed"
    assert "not those that the model's certificates name" in run.failure_reason


def bring(workshop):
    """Upload the weights of the backbone, other ones each time."""
    drawn = build(
        ArchitectureSpec("mlp", {"hidden": [3]}), input_shape=(2,), classes=2, allowed_factories=[]
    )
    content = safetensors.torch.save(dict(drawn.state_dict()))
    with workshop.transaction() as session:
        backbones.upload_weights(session, workshop.services.blobs, "public", content)


def test_a_base_that_changes_during_a_run_is_published_by_none(workshop, package, monkeypatch):
    workshop.define(architecture=OWN)
    load = run_module.load_records

    def changing(*arguments, **keywords):
        package.build = lambda **_: Adapted(2.0)
        return load(*arguments, **keywords)

    monkeypatch.setattr(run_module, "load_records", changing)
    run = carry_out(workshop)
    assert run.state == "failed"
    assert "have changed since the run began" in run.failure_reason


def test_a_base_drawn_at_random_is_none(workshop, package):
    def drawn(**_):
        module = Adapted()
        nn.init.normal_(module[0].weight)
        return module

    package.build = drawn
    workshop.define(architecture=OWN)
    run = carry_out(workshop)
    assert run.state == "failed"
    assert "'0.weight' is another one in each network" in run.failure_reason


def test_an_upload_may_not_bring_a_base_of_its_own(workshop, package):
    workshop.define(architecture=OWN, upload=True)
    whole = {name: tensor.numpy() for name, tensor in Adapted(1.5).state_dict().items()}
    workshop.upload("model", safetensors.numpy.save(whole))
    run = carry_out(workshop)
    assert run.state == "failed"
    assert "is not the factory's own, which is frozen" in run.failure_reason
    whole |= {name: np.ones_like(whole[name]) for name in ("0.weight", "0.bias")}
    workshop.upload("model", safetensors.numpy.save(whole))
    run = carry_out(workshop)
    assert run.state == "published", run.failure_reason
    assert set(safetensors.numpy.load(published(workshop)[1])) == {"2.weight", "2.bias"}


def test_a_factory_that_brings_trained_weights_reads_no_record(workshop, package, monkeypatch):
    """Retrained from them, or in a frame centred there, a model would forget nothing."""

    def bringing(**_):
        module = Adapted()
        with torch.no_grad():
            module[2].weight.copy_(torch.linspace(-1, 1, 8).reshape(2, 4))
        return module

    run = next_run(workshop, package, monkeypatch, build=bringing)
    assert run.state == "failed"
    assert "'2.weight' at the same weights in every network" in run.failure_reason

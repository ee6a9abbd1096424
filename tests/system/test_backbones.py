"""Public backbones end to end through HTTP: upload, train, forget twice, verify, erase."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from fastapi.testclient import TestClient
from sklearn.datasets import load_digits
from sqlalchemy import select

from app.accounting.histories.history import History
from app.accounting.histories.history_account import drift
from app.domain.architectures import ArchitectureSpec, definition_digest
from app.domain.recipes import TrainingRecipe
from app.evidence.certificates.verification import verify
from app.planning.mechanisms.tracked_release import TrackedRelease
from app.registry.datasets.tables import FeatureShardRow, RecordRow
from app.services import Services
from app.storage.tables import BlobRow
from tests.support.digits import DATASET, RECIPE, TASK, digits_parquet
from tests.support.trust import trust_in
from workers.training.examples import classified
from workers.training.networks.architectures import build
from workers.training.networks.network import Network
from workers.training.part import Part
from workers.training.tasks.task import INPUTS

RECORDS = 300
PUBLIC_FROM = 900  # the second half of the digits: none of them is among the private records
SPEC = {"name": "mlp", "options": {"hidden": [24]}}
DEFINITION = definition_digest(architecture=SPEC, layers=(), input_shape=(8, 8), classes=10)


@pytest.fixture(scope="module")
def public_weights() -> bytes:
    """A small network, trained for a moment on the public half."""
    images, labels = load_digits(return_X_y=True)
    examples = classified(
        images[PUBLIC_FROM:].reshape(-1, 8, 8).astype(np.uint8),
        labels[PUBLIC_FROM:],
        scale=0.0625,
    )
    network = Network(_build, device=torch.device("cpu"))
    network.train(examples, TrainingRecipe(epochs=6, batch_size=32, learning_rate=0.1), epochs=6)
    return safetensors.numpy.save(network.tensors())


def _build() -> torch.nn.Module:
    spec = ArchitectureSpec.from_json(SPEC)
    return build(spec, input_shape=(8, 8), classes=10, allowed_factories=[])


@pytest.fixture
def stocked(api: TestClient, public_weights: bytes) -> TestClient:
    """A service with the private digits and the public backbone."""
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    assert api.put("/v1/datasets/digits/records", content=digits_parquet(RECORDS)).is_success
    backbone = {
        "name": "public-digits",
        "architecture": SPEC,
        "input": {"shape": [8, 8]},
        "classes": 10,
        "source": "trained on digits 900 and above of scikit-learn's collection",
    }
    assert api.post("/v1/backbones", json=backbone).status_code == 201
    assert api.put("/v1/backbones/public-digits/weights", content=public_weights).is_success
    return api


def _define(api: TestClient, architecture: dict, **policy: object) -> None:
    model = {
        "name": "m",
        "dataset": "digits",
        "task": TASK,
        "architecture": architecture,
        "recipe": RECIPE | {"epochs": 4, "batch_size": 32},
        "policy": {"mechanism": "gradient_clipping", **policy},
    }
    answer = api.post("/v1/models", json=model)
    assert answer.status_code == 201, answer.text


def _forget(api: TestClient, work: Callable[[], None], subject: str) -> str:
    body = {"dataset": "digits", "subject_ids": [subject]}
    answer = api.post("/v1/forget-requests", json=body)
    work()
    request = api.get(answer.headers["Location"]).json()
    assert request["state"] == "completed", request["failure_reason"]
    return request["id"]


def _verified(api: TestClient, services: Services, request: str, tmp_path: Path) -> dict:
    """Download the weights and check their certificate; return its predicate and the tensors."""
    weights = tmp_path / "weights"
    weights.write_bytes(api.get("/v1/models/m/certified/weights").content)
    (certificate,) = api.get(f"/v1/forget-requests/{request}/certificates").json()
    predicate = verify(
        bundle=json.dumps(certificate["bundle"]).encode(),
        weights=weights,
        trusted=trust_in(services),
    )
    return {"predicate": predicate, "tensors": safetensors.torch.load(weights.read_bytes())}


@pytest.mark.parametrize(
    ("head", "mechanism"),
    [
        ({"name": "logistic"}, "gradient_clipping"),
        ({"name": "mlp", "options": {"hidden": [8]}}, "output_perturbation"),
        ({"name": "logistic"}, "retraining"),
    ],
    ids=["gradient_clipping", "output_perturbation", "retraining"],
)
def test_a_head_on_a_frozen_backbone_forgets_twice(
    head: dict,
    mechanism: str,
    stocked: TestClient,
    public_weights: bytes,
    services: Services,
    work: Callable[[], None],
    tmp_path: Path,
) -> None:
    _define(stocked, head | {"backbone": {"name": "public-digits"}}, mechanism=mechanism)
    work()
    covered = []
    for subject in ("subject-3", "subject-4"):
        found = _verified(stocked, services, _forget(stocked, work, subject), tmp_path)
        predicate, tensors = found["predicate"], found["tensors"]
        assert predicate["mechanism"]["name"] == mechanism
        assert predicate["backbone"] == {
            "name": "public-digits",
            "sha256": hashlib.sha256(public_weights).hexdigest(),
            "definition": DEFINITION,
            "frozen": True,
        }
        for name, public in safetensors.torch.load(public_weights).items():
            assert torch.equal(tensors[f"backbone.{name}"], public)
        assert tensors["1.weight"].shape[1] == 24
        covered.append(predicate["forgotten"]["records"])
    assert 0 < covered[0] < covered[1] <= 20
    if head == {"name": "logistic"}:
        assert _accuracy(tensors) > 0.4  # chance would give 0.1


def _accuracy(tensors: dict[str, torch.Tensor]) -> float:
    """Put a complete model together by hand, as its owner would, and try it on the records."""
    backbone, head = _build(), torch.nn.Linear(24, 10)
    backbone.load_state_dict(
        {n.removeprefix("backbone."): t for n, t in tensors.items() if n.startswith("backbone.")}
    )
    head.load_state_dict({"weight": tensors["1.weight"], "bias": tensors["1.bias"]})
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images[:RECORDS] / 16, dtype=torch.float32).reshape(-1, 8, 8)
    with torch.no_grad():
        predicted = head(torch.nn.Sequential(*list(backbone)[:-1])(inputs)).argmax(dim=1)
    return float((predicted.numpy() == labels[:RECORDS]).mean())


def test_a_linear_head_on_a_frozen_backbone_forgets_twice_by_tracked_release(
    stocked: TestClient,
    public_weights: bytes,
    services: Services,
    work: Callable[[], None],
    tmp_path: Path,
) -> None:
    """The drift of the head alone is tracked: the backbone is public and never moves."""
    definition = {
        "name": "m",
        "dataset": "digits",
        "task": TASK,
        "architecture": {"name": "linear_head", "backbone": {"name": "public-digits"}},
        "recipe": {"epochs": 5, "batch_size": 32, "held_out_fraction": 0.2},
        "policy": {"mechanism": "tracked_release"},
    }
    answer = stocked.post("/v1/models", json=definition)
    assert answer.status_code == 201, answer.text
    work()
    covered = []
    for subject in ("subject-3", "subject-4"):
        found = _verified(stocked, services, _forget(stocked, work, subject), tmp_path)
        predicate, tensors = found["predicate"], found["tensors"]
        assert predicate["mechanism"]["name"] == "tracked_release"
        assert predicate["guarantee"]["kind"] == "gaussian"
        assert predicate["guarantee"]["epsilon"] <= 1.0
        assert predicate["backbone"] == {
            "name": "public-digits",
            "sha256": hashlib.sha256(public_weights).hexdigest(),
            "definition": DEFINITION,
            "frozen": True,
        }
        for name, public in safetensors.torch.load(public_weights).items():
            assert torch.equal(tensors[f"backbone.{name}"], public)
        (head,) = (t for name, t in tensors.items() if not name.startswith("backbone."))
        assert head.shape == (10, 24 + 1)  # the features of the backbone, and the bias
        history = History.from_json(predicate["mechanism"]["parameters"]["history"])
        assert drift(history) > 0
        counted = TrackedRelease(history=history).account()
        assert counted.mu == predicate["guarantee"]["mu"] > 0
        assert history.recipe.dimension == head.numel()
        assert history.forgotten() == predicate["forgotten"]["records"]
        assert predicate["evaluation"]["metrics"]["accuracy"] > 0.6
        covered.append(predicate["forgotten"]["records"])
    assert 0 < covered[0] < covered[1] <= 20


def test_a_fine_tuned_network_forgets_twice_around_its_public_weights(
    stocked: TestClient,
    public_weights: bytes,
    services: Services,
    work: Callable[[], None],
    tmp_path: Path,
) -> None:
    _define(stocked, SPEC | {"backbone": {"name": "public-digits", "frozen": False}})
    work()
    digest = hashlib.sha256(public_weights).hexdigest()
    for subject in ("subject-3", "subject-4"):
        found = _verified(stocked, services, _forget(stocked, work, subject), tmp_path)
        predicate = found["predicate"]
        assert set(found["tensors"]) == {"1.weight", "1.bias", "3.weight", "3.bias"}
        assert predicate["backbone"]["frozen"] is False
        frame = predicate["mechanism"]["frame"]
        assert frame["centre"] == "public_weights"
        assert frame["public_source"] == {"name": "public-digits", "sha256": digest}
        assert frame["public_tensors"] == ["1.weight", "1.bias", "3.weight", "3.bias"]
        asserted = [a for a in predicate["assumptions"] if digest in a["statement"]]
        assert [a["support"] for a in asserted] == ["asserted"]


def test_retraining_and_plain_training_start_from_public_weights(
    stocked: TestClient, public_weights: bytes, work: Callable[[], None]
) -> None:
    """With a learning rate of next to nothing, what comes out is what went in."""
    public = safetensors.torch.load(public_weights)
    backbone = {"name": "public-digits", "frozen": False}
    for name, policy in (
        ("retrained", {"mechanism": "retraining"}),
        ("plain", {"mechanism": "gradient_clipping", "first_release": "as_trained"}),
    ):
        model = {
            "name": name,
            "dataset": "digits",
            "task": TASK,
            "architecture": SPEC | {"backbone": backbone},
            "recipe": RECIPE | {"learning_rate": 1e-9},
            "policy": policy,
        }
        assert stocked.post("/v1/models", json=model).status_code == 201
        work()
        content = stocked.get(f"/v1/models/{name}/versions/1/weights").content
        for tensor_name, tensor in safetensors.torch.load(content).items():
            torch.testing.assert_close(tensor, public[tensor_name], atol=1e-5, rtol=0)


def test_cached_features_are_erased_like_data(
    stocked: TestClient, services: Services, work: Callable[[], None]
) -> None:
    _define(stocked, {"name": "logistic", "backbone": {"name": "public-digits"}})
    work()
    (before,) = _feature_blobs(services)
    assert len(Part.of_bytes(services.blobs.read(before)).seqs) == RECORDS

    _forget(stocked, work, "subject-3")

    (after,) = _feature_blobs(services)
    kept = Part.of_bytes(services.blobs.read(after))
    seqs, features = kept.seqs, kept.tensors[INPUTS]
    with services.database.transaction() as session:
        is_erased = RecordRow.erased_at.is_not(None)
        erased = set(session.scalars(select(RecordRow.seq).where(is_erased)))
        old = session.get_one(BlobRow, before)
    assert len(erased) == 10
    assert not erased & set(seqs.tolist())
    assert features.shape == (RECORDS - 10, 24)
    assert (old.state, old.sha256) == ("shredded", None)
    with pytest.raises(Exception, match="shredded"):
        services.blobs.read(before)


def _feature_blobs(services: Services) -> list[str]:
    with services.database.transaction() as session:
        return list(session.scalars(select(FeatureShardRow.blob_id)))

"""No run imports anything while it is sealed: imports may write, and the seal refuses that."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from fastapi.testclient import TestClient

from app.domain.architectures import ArchitectureSpec
from app.domain.tasks import catalogue
from app.planning.mechanisms.catalogue import MECHANISMS
from app.runtime.settings import Settings
from app.services import Services
from tests.support.digits import DATASET, RECIPE, digits_parquet, model
from tests.support.fresh_workers import FreshWorkers
from tests.support.shops import SHOPS, push_shops
from tests.support.tasks_by_mechanism import ALL, Pair, pairs
from tests.support.workshop import Workshop
from workers.training.networks.architectures import build

_OPERATORS = """
from tests.integration.workers.training.test_tasks import next_token
from tests.support.own_tasks import Rents
"""
UPLOADED = ("gradient_clipping", "model_clipping", "output_perturbation")
EVERYTHING: dict[str, Any] = RECIPE | {
    "optimizer": "adamw",
    "learning_rate": 0.01,
    "schedule": "cosine",
    "warmup_fraction": 0.2,
    "micro_batches": 2,
    "clip_norm": 1.0,
    "precision": "bfloat16",
    "groups": [{"parameters": "*.bias", "weight_decay": 0.0}],
}


@pytest.fixture
def settings(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Settings of workers that find an operator's own package."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "operators_networks.py").write_text(_OPERATORS)
    monkeypatch.setenv("PYTHONPATH", str(package))
    monkeypatch.setenv("EXPUNGE_ALLOWED_FACTORIES", '["operators_networks:*"]')
    return settings.model_copy(update={"allowed_factories": ("operators_networks:*",)})


def require_nothing_late(services: Services, workers: FreshWorkers) -> list[str]:
    """Check that all runs were published and none imported in its seal; return their kinds."""
    runs = Workshop(services).runs()
    assert {run.id: run.failure_reason for run in runs if run.state != "published"} == {}
    late = {
        (run.kind, run.plan["mechanism"], run.plan["training"]): names
        for run in runs
        if (names := workers.late.get(run.id))
    }
    assert late == {}
    assert workers.late  # so they were sealed
    return [run.kind for run in runs]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_task_of_a_mechanism_imports_while_sealed(
    api: TestClient, services: Services, mechanism: str
) -> None:
    push_shops(Workshop(services))
    served = [each for each in pairs() if each.mechanism == mechanism and each.refusal is None]
    for pair in served:
        answer = api.post("/v1/models", json=pair.definition())
        assert answer.status_code == 201, answer.text
    uploads = [t for t in ALL if t != "language_model"] if mechanism in UPLOADED else []
    for pair in (Pair(mechanism, task) for task in uploads):
        _upload(api, pair)
    workers = FreshWorkers(services)
    workers.work()
    owners = [f"owner-{number}" for number in (3, 7, 11)]
    body = {"dataset": SHOPS, "subject_ids": owners}
    assert api.post("/v1/forget-requests", json=body).status_code < 300
    workers.work()
    kinds = require_nothing_late(services, workers)
    assert kinds.count("train") == len(served)
    assert kinds.count("certify") == len(uploads)
    covered = mechanism == "dp_sgd"  # by the training's noise
    assert kinds.count("unlearn") == (0 if covered else len(served) + len(uploads))


def test_no_network_and_no_recipe_imports_while_sealed(api: TestClient, services: Services) -> None:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())
    policies: list[dict[str, Any]] = [
        {},
        {"mechanism": "retraining", "first_release": "as_trained"},
        {"mechanism": "dp_sgd", "epsilon": 8.0, "parameters": {"capacity": 5}},
    ]
    networks = [
        {"name": "mlp", "options": {"hidden": [64]}},
        {"name": "cnn", "options": {"channels": [4]}},
        {"name": "logistic"},
    ]
    for number, network in enumerate(networks):
        for policy, recipe in zip(policies, (EVERYTHING, EVERYTHING, RECIPE), strict=True):
            name = f"{number}-{policy.get('mechanism', 'clipping').replace('_', '-')}"
            body = model(name, **policy) | {"architecture": network, "recipe": recipe}
            answer = api.post("/v1/models", json=body)
            assert answer.status_code == 201, answer.text
    workers = FreshWorkers(services)
    workers.work()
    for subject in ("subject-3", "subject-4"):
        body = {"dataset": "digits", "subject_ids": [subject]}
        assert api.post("/v1/forget-requests", json=body).status_code < 300
        workers.work()
    kinds = require_nothing_late(services, workers)
    assert kinds.count("unlearn") >= 2 * 6 + 3


def _upload(api: TestClient, pair: Pair) -> None:
    name = f"uploaded-{pair.name}"
    answer = api.post("/v1/models", json=pair.definition(weights="upload", name=name))
    assert answer.status_code == 201, answer.text
    spec = catalogue.from_json(ALL[pair.task])
    network = build(
        ArchitectureSpec("logistic"),
        input_shape=spec.schema().shape,
        classes=spec.outputs,
        allowed_factories=(),
    )
    body = safetensors.torch.save(dict(network.state_dict()))
    answer = api.put(f"/v1/models/{name}/weights", content=body)
    assert answer.status_code < 300, answer.text

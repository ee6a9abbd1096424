"""The life of models, datasets and backbones over HTTP, and answers that fit together."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event

from app.domain.states import Scope
from app.services import Services
from tests.integration.app.api.conftest import CallerOf
from tests.support.workshop import DATASET, RECIPE, RECORDS, SCHEMA, TASK, Workshop

POLLERS = 3
MODELS = 50


@pytest.fixture
def api(caller_of: CallerOf) -> TestClient:
    return caller_of(Scope.ADMIN)


def _definition(name: str, **more: object) -> dict[str, Any]:
    return {
        "name": name,
        "dataset": DATASET,
        "task": TASK,
        "architecture": {"name": "logistic"},
        "recipe": RECIPE.to_json(),
        "policy": {"mechanism": "retraining"},
        **more,
    }


def test_a_models_life(api: TestClient, workshop: Workshop) -> None:
    assert api.post("/v1/models", json=_definition("model")).status_code == 201
    busy = api.post("/v1/models/model/retrain")
    assert (busy.status_code, "is queued" in busy.json()["detail"]) == (409, True)
    workshop.work()
    workshop.push(1, first=RECORDS)
    answer = api.post("/v1/models/model/retrain")
    assert answer.status_code == 202
    run = answer.json()["latest_run"]
    assert answer.headers["Location"] == f"/v1/runs/{run['id']}"
    assert (run["kind"], run["state"], answer.json()["certified"]["number"]) == (
        "train",
        "queued",
        1,
    )
    assert api.post(f"/v1/runs/{run['id']}/cancel").json()["state"] == "cancelled"
    again = api.post(f"/v1/runs/{run['id']}/retry")
    assert (again.status_code, again.json()["kind"]) == (202, "train")
    workshop.work()
    assert api.get("/v1/models/model/certified").json()["number"] == 2

    assert api.delete("/v1/models/model").status_code == 409
    refused = api.post(f"/v1/datasets/{DATASET}/archive")
    assert (refused.status_code, "delete first model" in refused.json()["detail"]) == (409, True)
    archived = api.post("/v1/models/model/archive").json()
    assert (archived["certified"], archived["archived_at"] is not None) == (None, True)
    for method, path in (
        ("GET", "/certified"),
        ("GET", "/certified/weights"),
        ("GET", "/versions/2/weights"),
        ("POST", "/retrain"),
        ("POST", "/archive"),
        ("PATCH", ""),
    ):
        body = {"json": {"policy": {"epsilon": 2.0}}} if method == "PATCH" else {}
        gone = api.request(method, f"/v1/models/model{path}", **body)
        assert gone.status_code == 410, path
        assert "was archived" in gone.json()["detail"]
    states = [version["state"] for version in api.get("/v1/models/model/versions").json()["items"]]
    assert set(states) <= {"retired", "shredded"}
    assert api.get("/v1/models/model/versions/2/certificate").status_code == 200
    dataset = api.post(f"/v1/datasets/{DATASET}/archive").json()
    assert (dataset["records"], dataset["erased"]) == (0, RECORDS + 1)
    assert api.post("/v1/models", json=_definition("other")).status_code == 410
    content = b"PAR1"
    assert api.put(f"/v1/datasets/{DATASET}/records", content=content).status_code == 410


def test_what_never_released_is_deleted(api: TestClient, workshop: Workshop) -> None:
    api.post("/v1/models", json=_definition("model"))
    assert api.delete("/v1/models/model").status_code == 204
    assert api.get("/v1/models/model").status_code == 404
    assert api.post("/v1/models", json=_definition("model")).status_code == 201
    api.post("/v1/datasets", json={"name": "empty", **SCHEMA.to_json()})
    assert api.delete("/v1/datasets/empty").status_code == 204
    assert api.delete("/v1/datasets/empty").status_code == 404
    assert api.delete(f"/v1/datasets/{DATASET}").status_code == 409
    backbone = {
        "name": "public",
        "architecture": {"name": "logistic"},
        "input": {"shape": [2]},
        "classes": 2,
        "source": "nowhere",
    }
    api.post("/v1/backbones", json=backbone)
    assert api.delete("/v1/backbones/public").status_code == 204
    assert api.post("/v1/backbones", json=backbone).status_code == 201
    assert api.post("/v1/backbones/public/archive").json()["archived_at"]
    assert api.post("/v1/backbones/public/archive").status_code == 410


@pytest.mark.parametrize(
    "policy",
    [
        {"retrain_every_s": 0},
        {"retrain_every_s": 59.9},
        {"retrain_after_records": 0},
        {"retrain_every_s": 1e12},
    ],
)
def test_a_schedule_has_its_range(
    api: TestClient,
    workshop: Workshop,
    policy: dict[str, float],
) -> None:
    answer = api.post("/v1/models", json=_definition("model", policy=policy))
    assert answer.status_code == 422
    assert next(iter(policy)) in answer.json()["detail"]


def _contradicts(model: dict[str, Any]) -> bool:
    run = model["latest_run"]
    return run is not None and run["state"] == "published" and model["certified"] is None


@pytest.fixture
def published_between(services: Services, workshop: Workshop) -> Iterator[list[str]]:
    """Publish a model's run between two statements of an answer about it."""
    done: list[str] = []
    engine: Engine = services.database.engine

    def publish(*arguments: Any) -> None:
        statement = arguments[2]
        if not done and "FROM models" in statement and "FOR UPDATE" not in statement:
            done.append(statement)
            thread = threading.Thread(target=workshop.work)
            thread.start()
            thread.join()

    event.listen(engine, "after_cursor_execute", publish)
    yield done
    event.remove(engine, "after_cursor_execute", publish)


@pytest.mark.parametrize("path", ["/v1/models/model", "/v1/models"])
def test_a_version_that_is_published_during_an_answer_is_in_all_of_it_or_in_none(
    workshop: Workshop, api: TestClient, published_between: list[str], path: str
) -> None:
    published_between.append("not yet")
    workshop.define()
    published_between.clear()
    answer = api.get(path).json()
    assert published_between
    model = answer if "name" in answer else answer["items"][0]
    assert (model["certified"], model["latest_run"]["state"]) == (None, "queued")


@pytest.mark.nightly
def test_pollers_never_see_published_without_a_version(api: TestClient, workshop: Workshop) -> None:
    stop = threading.Event()
    contradictions: list[dict[str, Any]] = []
    seen: set[str] = set()

    def poll() -> None:
        while not stop.is_set():
            for model in api.get("/v1/models", params={"limit": 200}).json()["items"]:
                seen.add(model["name"])
                one = api.get(f"/v1/models/{model['name']}").json()
                contradictions.extend(each for each in (model, one) if _contradicts(each))

    pollers = [threading.Thread(target=poll) for _ in range(POLLERS)]
    for poller in pollers:
        poller.start()
    try:
        for number in range(MODELS):
            name = f"model-{number:02}"
            assert api.post("/v1/models", json=_definition(name)).status_code == 201
            workshop.work(name)
    finally:
        stop.set()
        for poller in pollers:
            poller.join()
    assert seen
    assert contradictions == []

"""What a present version still covers: of models, in lists, in quotes, as a metric."""

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from app.accounting.histories.history_account import placed_worst
from app.domain.policy import Policy
from app.domain.states import Scope
from app.ledger.certificates.present_release import capacity_of, present_of
from app.planning.coverage import Covered, coverage
from tests.integration.app.api.conftest import CallerOf
from tests.support.workshop import Workshop

HEAD = {"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25, "weight_decay": 0.05}
TRACKED = {
    "architecture": "linear_head",
    "recipe": HEAD,
    "mechanism": "tracked_release",
    "parameters": {"noise_std": 40.0},
}
PRIVATE = {"mechanism": "dp_sgd", "epsilon": 8.0, "parameters": {"capacity": 4}}
METRIC = "expunge_model_capacity_records"


@pytest.fixture
def models(workshop: Workshop) -> Workshop:
    """A head with noise, a network trained with DP-SGD, and one that covers nothing later."""
    for name, definition in {"head": TRACKED, "private": PRIVATE, "clipped": {}}.items():
        workshop.train(name, **definition)
    return workshop


def shown(api: TestClient, name: str) -> int | None:
    answer = api.get(f"/v1/models/{name}")
    assert answer.status_code == 200
    return answer.json()["capacity"]


def scraped(api: TestClient) -> dict[str, float]:
    families = text_string_to_metric_families(api.get("/metrics").text)
    return {s.labels["model"]: s.value for f in families for s in f.samples if s.name == METRIC}


def test_of_each_model(models: Workshop, caller_of: CallerOf) -> None:
    api = caller_of(Scope.MODELS_READ, Scope.LOG_READ)
    head, private = shown(api, "head"), shown(api, "private")
    assert head is not None
    assert 0 < head < 30
    assert private == 4
    assert shown(api, "clipped") is None
    listed = {each["name"]: each["capacity"] for each in api.get("/v1/models").json()["items"]}
    assert listed == {"head": head, "private": 4, "clipped": None}
    assert scraped(api) == {"head": head, "private": 4}


def test_falls_with_the_policys_target_and_is_what_coverage_says(
    models: Workshop, caller_of: CallerOf
) -> None:
    api = caller_of(Scope.MODELS_READ, Scope.MODELS_WRITE)
    before = shown(api, "head")
    change = api.patch("/v1/models/head", json={"policy": {"epsilon": 0.5}})
    assert change.status_code == 200
    after = change.json()["capacity"]
    assert after == shown(api, "head") < before
    with models.transaction() as session:
        model = models.model("head")
        head, policy = present_of(session, model), Policy.from_json(model.policy)
        assert head is not None
        history = head.tracking.history
        assert isinstance(coverage(head, policy, placed_worst(history, after)), Covered)
        beyond = placed_worst(history, after + 1)
        assert not isinstance(coverage(head, policy, beyond), Covered)
        found = capacity_of(session, model)
    assert found is not None
    assert found.left == found.full == after


def test_what_was_forgotten_counts(models: Workshop, caller_of: CallerOf) -> None:
    api = caller_of(Scope.MODELS_READ)
    models.forget(models.split("private")[0][0])
    assert models.active_run("private") is None
    assert shown(api, "private") == 3


def test_without_a_version_there_is_none(workshop: Workshop, caller_of: CallerOf) -> None:
    api = caller_of(Scope.MODELS_READ, Scope.LOG_READ)
    workshop.define("head", **TRACKED)
    assert shown(api, "head") is None
    workshop.work("head")
    assert shown(api, "head") is not None
    workshop.archive("head")
    assert shown(api, "head") is None
    assert scraped(api) == {}


def test_a_quote_says_what_the_next_release_will_cover(
    models: Workshop, caller_of: CallerOf
) -> None:
    api = caller_of(Scope.MODELS_READ)
    policy = {"mechanism": "tracked_release", "parameters": {"noise_std": 40.0}}
    answer = api.post("/v1/plans", json={"model": "head", "policy": policy})
    quotes = {quote["mechanism"]: quote for quote in answer.json()["quotes"]}
    assert quotes["tracked_release"]["capacity"] >= shown(api, "head")
    assert quotes["retraining"]["capacity"] is None

"""Plans over HTTP: every mechanism answers, with an offer or with a reason."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.cli.application import create_app
from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.plan import Plan
from app.domain.tasks import catalogue
from app.planning import planner
from app.registry.backbones import parameters_of_model
from app.registry.datasets.tables import DatasetRow, FeatureShardRow
from app.registry.tables import LineageRecordsRow, ModelRow
from app.services import Services
from app.storage.tables import BlobRow
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.exact_heads import carry_out, define_backbone, head_of
from tests.support.patience import PATIENCE_S, until
from tests.support.serving import serve
from tests.support.workshop import DATASET as PEOPLE
from tests.support.workshop import TASK, Workshop

LONG = {
    "model": "head",
    "policy": {
        "adaptive": True,
        "mechanism": "noisy_gd_convex",
        "parameters": {"earlier_releases": 5000, "unlearning_steps": 10},
    },
}


@pytest.fixture
def head(workshop: Workshop) -> str:
    """A linear head, which is quoted at once, but for ``LONG``."""
    recipe = {"held_out_fraction": 0.25}
    return workshop.define("head", architecture="linear_head", recipe=recipe, mechanism="auto")


def quotes(api: TestClient, **body: object) -> dict:
    answer = api.post("/v1/plans", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def offers(answer: dict) -> dict[str, dict]:
    return {quote["mechanism"]: quote for quote in answer["quotes"]}


NO_NUMBERS = [True, "1", None, [True], ["1"], [[1.0]], [], [None] * 10_000, {}]


def test_what_is_neither_a_number_nor_a_list_of_numbers_is_a_problem(
    api: TestClient, head: str, subtests: pytest.Subtests
) -> None:
    for value in NO_NUMBERS:
        with subtests.test(value=value):
            body = {"model": head, "policy": {"parameters": {"noise_std": value}}}
            answer = api.post("/v1/plans", json=body)

            assert answer.status_code == 422
            assert "noise_std" in answer.text
            assert len(answer.text) < 2000


def test_a_model_is_quoted_by_its_name(api: TestClient) -> None:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())
    api.post("/v1/models", json=model())

    assert "gradient_clipping" in offers(quotes(api, model="digits-mlp"))


def test_a_quote_says_how_long_such_a_run_takes(api: TestClient, workshop: Workshop) -> None:
    workshop.define("new", mechanism="retraining")
    workshop.train("trained", architecture="linear_head", recipe={}, mechanism="retraining")

    found = offers(quotes(api, model="trained"))
    measured = found["retraining"]["seconds"]
    assert 0 < measured["least"] <= measured["expected"] <= measured["most"]
    assert found["exact_training"]["seconds"] is None
    assert offers(quotes(api, model="new"))["retraining"]["seconds"] is None


LEARNED_HERE = [
    (ArchitectureSpec("mlp", {"hidden": [50, 40]}), "retraining", "retraining"),
    (ArchitectureSpec("linear_head"), "exact_training", "retraining"),
    (ArchitectureSpec("ridge_head"), "sufficient_statistics", "sufficient_statistics"),
    (ArchitectureSpec("boosted_trees", {"trees": 9}), "boosting", "boosting"),
    (
        ArchitectureSpec("ensemble", members=3, of=ArchitectureSpec("mlp", {"hidden": [50]})),
        "sharded_retraining",
        "sharded_retraining",
    ),
    (
        ArchitectureSpec("ridge_head", backbone=BackboneUse("public")),
        *["sufficient_statistics"] * 2,
    ),
]


@pytest.mark.parametrize(("architecture", "mechanism", "other"), LEARNED_HERE)
def test_a_quote_says_what_is_on_disk(
    api: TestClient, workshop: Workshop, architecture: ArchitectureSpec, mechanism: str, other: str
) -> None:
    """Computed before there is a version, and measured after that."""
    define_backbone(workshop)
    recipe = {"epochs": 1, "batch_size": 16} if "mlp" in str(architecture) else {}
    workshop.define("model", architecture=architecture, recipe=recipe, mechanism=mechanism)
    computed = offers(quotes(api, model="model"))[mechanism]["disk"]
    carry_out(workshop)
    measured = offers(quotes(api, model="model"))

    assert (computed["measured"], measured[mechanism]["disk"]["measured"]) == (False, True)
    with workshop.transaction() as session:
        sizes = dict(session.execute(select(BlobRow.id, BlobRow.size_bytes)).tuples().all())
        features = session.scalars(select(FeatureShardRow.blob_id)).all()
        facts = session.scalars(select(LineageRecordsRow.facts)).all()
    head = head_of(workshop)
    sums = sizes.get(head.statistics_blob_id, 0)
    assert measured[mechanism]["disk"]["version_bytes"] == head.size_bytes + sums
    assert measured[other]["disk"]["version_bytes"] == head.size_bytes + sums
    kept = sum(sizes[each] for each in features) + sum(map(len, facts))
    assert measured[mechanism]["disk"]["records_bytes"] == kept > 0
    for part in ("version_bytes", "records_bytes"):
        assert computed[part] == pytest.approx(measured[mechanism]["disk"][part], abs=4096)


BAD_QUESTIONS = [
    ({}, 422),
    ({"model": "missing"}, 404),
    ({"model": "head", "shape": {"retained": 10, "batch_size": 2, "recipe_epochs": 1}}, 422),
    ({"model": "head", "policy": {"mechanism": "magic"}}, 422),
    ({"model": "head", "policy": {"epsilon": 10**400}}, 422),
]


def test_bad_questions_are_problems(api: TestClient, head: str, subtests: pytest.Subtests) -> None:
    for body, status in BAD_QUESTIONS:
        with subtests.test(body=body, status=status):
            answer = api.post("/v1/plans", json=body)

            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/problem+json"


def test_a_quote_that_takes_too_long_is_a_problem_of_its_own(
    services: Services, admin_key: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "TIME_LIMIT_S", 0.05)
    app = create_app(replace(services))  # with processes of its own
    api = TestClient(app, headers={"Authorization": f"Bearer {admin_key}"})
    answer = api.post("/v1/plans", json=LONG)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:expunge:problem:too-costly")
    assert "0.05 s" in answer.json()["detail"]


def test_a_service_that_stops_makes_no_more_plans(
    api: TestClient, services: Services, head: str
) -> None:
    services.planners.close()
    answer = api.post("/v1/plans", json={"model": head})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:expunge:problem:overloaded")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("idempotent", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_caller_who_hangs_up_is_quoted_nothing(
    services: Services,
    admin_key: str,
    head: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    idempotent: bool,
) -> None:
    headers = {"Authorization": f"Bearer {admin_key}"}
    headers |= {"Idempotency-Key": "key"} if idempotent else {}
    monkeypatch.setattr(planner, "TIME_LIMIT_S", PATIENCE_S)
    services = replace(services)  # with processes of its own
    processes = services.planners._pool._idle
    with serve(create_app(services)) as url:
        until(lambda: processes.qsize() == planner.PROCESSES)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{url}/v1/plans",
                json=LONG,
                headers=headers,
                timeout=httpx.Timeout(PATIENCE_S, read=1),
            )
        until(lambda: processes.qsize() == planner.PROCESSES)
        assert all(process.connected() is None for process in processes.queue)
        assert (
            httpx.post(
                f"{url}/v1/plans",
                json={"model": head},
                headers=headers | {"Idempotency-Key": "other"},
                timeout=PATIENCE_S,
            ).status_code
            == 200
        )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/models", {**model("other"), "dataset": PEOPLE, "task": TASK, "recipe": {}}),
        ("PATCH", "/v1/models/model", {"policy": {"epsilon": 0.5}}),
        ("PUT", "/v1/models/model/weights", None),
    ],
)
def test_nothing_is_locked_while_a_plan_is_made(
    api: TestClient,
    workshop: Workshop,
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: dict | None,
) -> None:
    workshop.define(upload=True)
    make_plan, made = services.planners.plan, []

    def plan(**known: Any) -> Plan:
        with services.database.transaction() as session:
            for row in (DatasetRow, ModelRow):
                assert session.scalars(select(row).with_for_update(nowait=True)).all()
        made.append(make_plan(**known))
        return made[-1]

    monkeypatch.setattr(services.planners, "plan", plan)
    if body is None:
        sent = {"content": safetensors.numpy.save({"w": np.zeros(2, dtype=np.float32)})}
    else:
        sent = {"json": body}
    answer = api.request(method, path, **sent)
    assert answer.is_success, answer.text
    assert len(made) == 1


@pytest.mark.parametrize("widths", [[65_536] * 64, [10**30], [1_000_000]])
def test_an_architecture_is_limited_by_its_parameters(
    api: TestClient, workshop: Workshop, widths: list[int]
) -> None:
    architecture = {"name": "mlp", "options": {"hidden": widths}}
    definition = {**model(), "dataset": PEOPLE, "task": TASK} | {
        "architecture": architecture,
        "recipe": {},
    }
    answer = api.post("/v1/models", json=definition)
    if widths == [1_000_000]:  # two features, two classes: five million parameters
        assert answer.status_code == 201
        return
    assert answer.status_code == 422
    layers = [2, *widths, 2]
    count = sum(a * b + b for a, b in pairwise(layers))
    assert f"it would have {count} parameters" in answer.json()["detail"]
    assert "at most 100000000 are allowed" in answer.json()["detail"]


def test_a_head_is_limited_by_the_features_that_its_backbone_gives(
    services: Services, workshop: Workshop, api: TestClient
) -> None:
    network = {"name": "mlp", "options": {"hidden": [1000]}}
    body = {"architecture": network, "input": {"shape": [2]}, "classes": 2, "source": "elsewhere"}
    assert api.post("/v1/backbones", json={"name": "public", **body}).status_code == 201
    content = safetensors.numpy.save({"w": np.zeros(2, dtype=np.float32)})
    assert api.put("/v1/backbones/public/weights", content=content).is_success
    head = ArchitectureSpec.from_json({"name": "logistic", "backbone": {"name": "public"}})
    task = catalogue.from_json(TASK)
    with services.database.transaction() as session:
        assert parameters_of_model(session, head, task, task.schema()) == 2002

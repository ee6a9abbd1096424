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
from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.plan import Plan
from app.domain.schema import FeatureSchema
from app.domain.tasks.classification import ClassificationSpec
from app.planning.mechanisms import catalogue
from app.registry.backbones.use import parameters_of_model
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import ModelRow
from app.services import Services
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.patience import PATIENCE_S, until
from tests.support.serving import serve
from tests.support.workshop import DATASET as PEOPLE
from tests.support.workshop import Workshop

NETWORK = {"retained": 50_000, "batch_size": 128, "recipe_epochs": 50.0}
HEAD = {
    "lipschitz": 1.0,
    "smoothness": 0.25,
    "weight_decay": 0.011264,
    "learning_rate": 1 / 0.261264,
}
LONG = {
    "shape": {**NETWORK, "convex": HEAD},
    "policy": {
        "adaptive": True,
        "mechanism": "noisy_gd_convex",
        "parameters": {"earlier_releases": 5000, "unlearning_steps": 10},
    },
}


def quotes(api: TestClient, **body: object) -> dict:
    answer = api.post("/v1/plans", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def offers(answer: dict) -> dict[str, dict]:
    return {quote["mechanism"]: quote for quote in answer["quotes"]}


def test_every_mechanism_offers_or_says_why_not(api: TestClient) -> None:
    answer = quotes(api, shape=NETWORK)

    declined = {entry["mechanism"]: entry["reason"] for entry in answer["declined"]}
    assert set(offers(answer)) | set(declined) == set(catalogue.MECHANISMS)
    assert not set(offers(answer)) & set(declined)
    assert all(declined.values())


def test_a_loss_without_a_bound_on_its_curvature_is_declined_by_what_needs_one(
    api: TestClient,
) -> None:
    asserted = {"smoothness": 1, "loss_bound": 1, "learning_rate": 2e-4, "weight_decay": 21}
    policy = {
        "mechanism": "noisy_gd_nonconvex",
        "epsilon": 50,
        "parameters": {**asserted, "noise_std": 0.0906, "order": 1.5},
    }
    shape = {"retained": 1000, "batch_size": 10, "recipe_epochs": 1, "dimension": 4}
    assert "noisy_gd_nonconvex" in offers(quotes(api, shape=shape, policy=policy))
    answer = quotes(api, shape=shape | {"rough": "it has a kink"}, policy=policy)
    (reason,) = (e["reason"] for e in answer["declined"] if e["mechanism"] == "noisy_gd_nonconvex")
    assert reason == "needs a bound on the loss's curvature: it has a kink"


def test_every_offer_meets_the_target_by_its_own_accountant(api: TestClient) -> None:
    for shape in (
        NETWORK,
        {**NETWORK, "convex": HEAD},
        {**NETWORK, "convex": HEAD, "dimension": 785},
    ):
        for quote in offers(quotes(api, shape=shape)).values():
            guarantee = catalogue.account(quote["mechanism"], quote["parameters"])
            assert guarantee.meets(epsilon=1.0, delta=1e-5), quote["mechanism"]


def test_a_fresh_start_is_not_cheaper_than_retraining_and_auto_says_so(api: TestClient) -> None:
    answer = quotes(api, shape=NETWORK)

    of = offers(answer)
    assert of["gradient_clipping"]["surviving_information_bits"] == pytest.approx(0.1112, abs=1e-4)
    assert (
        of["gradient_clipping"]["gradient_computations"]
        == of["retraining"]["gradient_computations"]
    )
    assert answer["choice"] == "retraining"


def test_under_a_smaller_budget_auto_forgets_instead_of_retraining(api: TestClient) -> None:
    answer = quotes(api, shape=NETWORK, policy={"budget_epochs": 5.0})

    assert answer["choice"] in ("gradient_clipping", "model_clipping", "output_perturbation")
    assert (
        "budget_epochs" in {d["mechanism"]: d["reason"] for d in answer["declined"]}["retraining"]
    )


def test_a_tracked_head_is_released_without_a_gradient_where_its_noise_allows(
    api: TestClient,
) -> None:
    shape = {**NETWORK, "convex": HEAD}
    policy = {"mechanism": "tracked_release", "parameters": {"steps": 0}}
    at_once = offers(quotes(api, shape=shape, policy=policy))["tracked_release"]
    by_default = offers(quotes(api, shape=shape))["tracked_release"]

    for quote in (at_once, by_default):
        assert quote["gradient_computations"] == 0
    assert by_default["noise_per_coordinate"] == 0.05
    # Enough for one record at the worst place: the drift of fifty epochs over the target's mu.
    rate, shift, batches = 1 - HEAD["learning_rate"] * 0.011264, HEAD["learning_rate"] / 128, 391
    drift = shift * (1 - rate ** (50 * batches)) / (1 - rate**batches)
    assert at_once["noise_per_coordinate"] == pytest.approx(drift / 0.268051123211, rel=1e-6)


def test_a_quote_of_a_tracked_head_names_the_history_that_it_would_have(api: TestClient) -> None:
    shape = {**NETWORK, "convex": HEAD, "dimension": 785}
    history = offers(quotes(api, shape=shape))["tracked_release"]["parameters"]["history"]

    assert history["events"] == [{"steps": 50 * 391, "noise_std": 0.0}, {"release": 0.05}]
    assert history["recipe"]["dimension"] == 785


@pytest.mark.parametrize("name", ["drift", "noise_std"])
def test_what_training_did_cannot_be_claimed(api: TestClient, name: str) -> None:
    shape = {**NETWORK, "convex": HEAD | {name: 0.01}}
    answer = api.post("/v1/plans", json={"shape": shape})

    assert answer.status_code == 422
    assert name in answer.text


def test_only_exact_heads_and_a_mechanism_that_protects_present_records_are_adaptive(
    api: TestClient,
) -> None:
    shape = {**NETWORK, "convex": HEAD}

    def of(releases: int) -> dict[str, Any]:
        policy = {
            "adaptive": True,
            "mechanism": "noisy_gd_convex",
            "parameters": {"earlier_releases": releases, "unlearning_steps": 20},
        }
        return offers(quotes(api, shape=shape, policy=policy))

    few, many = of(1), of(40)
    assert set(few) == set(many) == {"exact_training", "noisy_gd_convex"}
    assert all(offer["guarantee"]["adaptive"] for offer in few.values())
    first, last = (found["noisy_gd_convex"]["noise_per_coordinate"] for found in (few, many))
    assert last > 1.5 * first


def test_parameters_belong_to_the_mechanism_that_the_policy_names(api: TestClient) -> None:
    policy = {"mechanism": "gradient_clipping", "parameters": {"steps": 7}}
    of = offers(quotes(api, shape=NETWORK, policy=policy))

    assert of["gradient_clipping"]["parameters"]["steps"] == 7
    assert {"model_clipping", "output_perturbation", "retraining"} < set(of)


def test_a_quote_gives_schedules_back_as_lists(api: TestClient) -> None:
    schedules = {"noise_std": [4, 3, 2, 1.5], "gradient_clip": [0.2, 0.1, 0.1, 0.1]}
    policy = {"mechanism": "gradient_clipping", "parameters": schedules}
    parameters = offers(quotes(api, shape=NETWORK, policy=policy))["gradient_clipping"][
        "parameters"
    ]

    assert {name: parameters[name] for name in schedules} == schedules
    assert parameters["steps"] == 4


NO_NUMBERS = [True, "1", None, [True], ["1"], [[1.0]], [], [None] * 10_000, {}]


def test_what_is_neither_a_number_nor_a_list_of_numbers_is_a_problem(
    api: TestClient, subtests: pytest.Subtests
) -> None:
    for value in NO_NUMBERS:
        with subtests.test(value=value):
            body = {"shape": NETWORK, "policy": {"parameters": {"noise_std": value}}}
            answer = api.post("/v1/plans", json=body)

            assert answer.status_code == 422
            assert "noise_std" in answer.text
            assert len(answer.text) < 2000


def test_a_model_is_quoted_by_its_name(api: TestClient) -> None:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())
    api.post("/v1/models", json=model())

    assert "gradient_clipping" in offers(quotes(api, model="digits-mlp"))


BAD_QUESTIONS = [
    ({}, 422),
    ({"model": "a", "shape": NETWORK}, 422),
    ({"model": "missing"}, 404),
    ({"shape": {**NETWORK, "retained": 0}}, 422),
    ({"shape": {**NETWORK, "retained": 10**400}}, 422),
    ({"shape": {**NETWORK, "batch_size": 10**13}}, 422),
    ({"shape": {**NETWORK, "recipe_epochs": 1e300}}, 422),
    ({"shape": {**NETWORK, "convex": HEAD | {"lipschitz": -1.0}}}, 422),
    ({"shape": NETWORK, "policy": {"mechanism": "magic"}}, 422),
]


def test_bad_questions_are_problems(api: TestClient, subtests: pytest.Subtests) -> None:
    for body, status in BAD_QUESTIONS:
        with subtests.test(body=body, status=status):
            answer = api.post("/v1/plans", json=body)

            assert answer.status_code == status
            assert answer.headers["content-type"] == "application/problem+json"


def test_a_quote_that_takes_too_long_is_a_problem_of_its_own(
    services: Services, admin_key: str
) -> None:
    settings = services.settings.model_copy(update={"plan_timeout_s": 0.05})
    app = create_app(replace(services, settings=settings))
    api = TestClient(app, headers={"Authorization": f"Bearer {admin_key}"})
    answer = api.post("/v1/plans", json=LONG)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:expunge:problem:too-costly")
    assert "0.05 s" in answer.json()["detail"]


def test_a_service_that_stops_makes_no_more_plans(api: TestClient, services: Services) -> None:
    services.planners.close()
    answer = api.post("/v1/plans", json={"shape": NETWORK})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:expunge:problem:overloaded")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("idempotent", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_caller_who_hangs_up_is_quoted_nothing(
    services: Services, admin_key: str, *, idempotent: bool
) -> None:
    headers = {"Authorization": f"Bearer {admin_key}"}
    headers |= {"Idempotency-Key": "key"} if idempotent else {}
    settings = services.settings.model_copy(update={"plan_timeout_s": PATIENCE_S})
    services = replace(services, settings=settings)  # with processes of its own
    processes = services.planners._pool._idle
    with serve(create_app(services)) as url:
        until(lambda: processes.qsize() == services.settings.plan_processes)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{url}/v1/plans",
                json=LONG,
                headers=headers,
                timeout=httpx.Timeout(PATIENCE_S, read=1),
            )
        until(lambda: processes.qsize() == services.settings.plan_processes)
        assert all(process.connected() is None for process in processes.queue)
        assert (
            httpx.post(
                f"{url}/v1/plans",
                json={"shape": NETWORK},
                headers=headers | {"Idempotency-Key": "other"},
                timeout=PATIENCE_S,
            ).status_code
            == 200
        )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/models", {**model("other"), "dataset": PEOPLE, "recipe": {}}),
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
    definition = {**model(), "dataset": PEOPLE, "architecture": architecture, "recipe": {}}
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
    task = ClassificationSpec(classes=2)
    schema = FeatureSchema(shape=(2,), dtype="float32", offset=0.0, scale=1.0, classes=2)
    with services.database.transaction() as session:
        assert parameters_of_model(session, head, task, schema) == 2002

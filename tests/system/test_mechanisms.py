"""Each mechanism end to end through HTTP: train, forget twice, download, verify."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.evidence.certificates.verification import verify
from app.planning.mechanisms import catalogue
from app.services import Services
from tests.support.digits import DATASET, RECIPE, digits_parquet, model
from tests.support.mechanisms import CASES, Document, of_digits
from tests.support.trust import trust_in

SCHEDULES = {
    "learning_rate": [0.2, 0.15, 0.1, 0.1, 0.05, 0.05],
    "noise_std": [1.5, 1.4, 1.3, 1.2, 1.1, 1.0],
}


BOUNDED = "noisy_gd_nonconvex"
# The same again with another policy, where requests may depend on releases by another one.
ADAPTIVE = [(name, case.adaptive) for name, case in CASES.items() if case.adaptive]
POLICIES: list[tuple[str, Document]] = [
    *((name, {}) for name in CASES if name != BOUNDED),
    *ADAPTIVE,
]


@pytest.fixture
def digits(api: TestClient) -> TestClient:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())
    return api


def test_mechanisms_forget_two_batches_and_each_certificate_covers_the_union(
    digits: TestClient,
    services: Services,
    work: Callable[[], None],
    tmp_path: Path,
) -> None:
    forget_twice(POLICIES, digits, services, work, tmp_path)


@pytest.mark.nightly
def test_thousands_of_noisy_steps_forget_two_batches(
    digits: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    forget_twice([(BOUNDED, {})], digits, services, work, tmp_path)


def name_of(mechanism: str, policy: Document) -> str:
    """Return the name of a model under a policy."""
    return mechanism.replace("_", "-") + ("-adaptive" if policy.get("adaptive") else "")


def forget_twice(
    policies: list[tuple[str, Document]],
    api: TestClient,
    services: Services,
    work: Callable[[], None],
    tmp_path: Path,
) -> None:
    """Have a model of each policy forget two subjects, and check what every certificate says."""
    names = {name_of(mechanism, policy): (mechanism, policy) for mechanism, policy in policies}
    for name, (mechanism, policy) in names.items():
        defined = api.post("/v1/models", json=of_digits(mechanism, name, **policy))
        assert defined.status_code == 201, defined.text
    work()
    covered: dict[str, list[int]] = {name: [] for name in names}
    for subject in ("subject-3", "subject-4"):
        request = _forgotten(subject, api, work)
        for name, (mechanism, policy) in names.items():
            case = CASES[mechanism]
            predicate = _verified(request, name, api, services, tmp_path)
            assert predicate["mechanism"]["name"] == mechanism
            assert predicate["guarantee"]["kind"] == case.guarantee
            target = {**case.policy, **policy}.get("epsilon", 1.0)
            assert predicate["guarantee"]["epsilon"] <= (0 if case.guarantee == "exact" else target)
            evaluation = predicate["evaluation"]
            assert evaluation["metrics"]["accuracy"] >= case.accuracy, name
            if "history" in predicate["mechanism"]["parameters"]:
                curve = evaluation["noise_curve"]
                assert curve[0]["score"] == evaluation["metrics"]["accuracy"]
                assert curve[0]["noise_std"] * 16 == curve[-1]["noise_std"]
            adaptive = policy.get("adaptive", False)
            assert predicate["guarantee"]["adaptive"] == (adaptive or case.is_adaptive)
            earlier = predicate["model"]["version"] - 1
            composed = {earlier, earlier + 1} if adaptive else {0}  # one more where it is covered
            assert predicate["guarantee"]["releases_before"] in composed
            covered[name].append(predicate["forgotten"]["records"])
    for first, second in covered.values():
        assert 0 < first < second <= 20


def test_schedules_go_from_the_policy_to_a_certificate_that_lists_the_steps_taken(
    digits: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    api = digits
    answer = api.post("/v1/models", json=model(parameters=SCHEDULES))
    assert answer.status_code == 201, answer.text
    assert api.get("/v1/models/digits-mlp").json()["policy"]["parameters"] == SCHEDULES
    work()
    for subject in ("subject-3", "subject-4"):
        predicate = _forget(subject, "digits-mlp", api, services, work, tmp_path)
        taken = predicate["mechanism"]["parameters"]
        # Five of the six steps meet the target: the sixth is not taken.
        assert taken["steps"] == 5
        assert {name: taken[name] for name in SCHEDULES} == {
            name: schedule[:5] for name, schedule in SCHEDULES.items()
        }
        assert len(taken["weight_decay"]) == 5
        guarantee = catalogue.account("gradient_clipping", taken)
        assert guarantee.meets(epsilon=1.0, delta=1e-5)
        assert predicate["guarantee"]["mu"] == guarantee.mu


def test_a_spent_group_budget_is_a_new_training_with_the_same_privacy(
    digits: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    """A group of 12 covers one subject, but not the next one too; training anew it starts again."""
    api = digits
    policy = {"mechanism": "dp_sgd", "epsilon": 8.0, "parameters": {"capacity": 12}}
    definition = model(**policy)
    definition["recipe"] = {**RECIPE, "held_out_fraction": 0.0}
    assert api.post("/v1/models", json=definition).status_code == 201
    work()
    told = []
    for subject in ("subject-3", "subject-4", "subject-5"):
        predicate = _forget(subject, "digits-mlp", api, services, work, tmp_path)
        group = predicate["mechanism"]["parameters"].get("group_size")
        told.append((predicate["mechanism"]["name"], group))
    # A certificate states the whole group that the noise covers: its guarantee stays the same with
    # each request. Those forgotten before the new training do not count again.
    assert told == [("dp_sgd", 12), ("retraining", None), ("dp_sgd", 12)]


def _forget(
    subject: str,
    model_name: str,
    api: TestClient,
    services: Services,
    work: Callable[[], None],
    tmp_path: Path,
) -> dict:
    """Forget a subject, download, verify, and return what the certificate says."""
    return _verified(_forgotten(subject, api, work), model_name, api, services, tmp_path)


def _forgotten(subject: str, api: TestClient, work: Callable[[], None]) -> str:
    """Forget a subject in every model; return the request's id."""
    answer = api.post("/v1/forget-requests", json={"dataset": "digits", "subject_ids": [subject]})
    work()
    request = api.get(answer.headers["Location"]).json()
    assert request["state"] == "completed", request["failure_reason"]
    return str(request["id"])


def _verified(
    request_id: str, model_name: str, api: TestClient, services: Services, tmp_path: Path
) -> dict:
    """Download what one model has for a request, verify, and return what the certificate says."""
    weights = tmp_path / "weights"
    weights.write_bytes(api.get(f"/v1/models/{model_name}/certified/weights").content)
    certificates = api.get(f"/v1/forget-requests/{request_id}/certificates").json()
    (certificate,) = (each for each in certificates if each["model"] == model_name)
    return verify(
        bundle=json.dumps(certificate["bundle"]).encode(),
        weights=weights,
        trusted=trust_in(services),
    )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mechanism": "tracked_release"}, "needs a linear_head"),
    ({"adaptive": True}, "adaptive"),
    ({"mechanism": "retraining", "budget_epochs": 1.0}, "budget_epochs"),
    ({"mechanism": "model_clipping", "budget_epochs": 0.5}, "budget_epochs"),
    ({"parameters": {**SCHEDULES, "steps": 5}}, "6 numbers for 5 steps"),
    ({"parameters": {"noise_std": [1.0, 0.1]}}, "leave it out"),
    ({"parameters": {"noise_std": []}}, "a list of 1 to"),
    ({"mechanism": "model_clipping", "parameters": {"noise_std": [1.0]}}, "one number here"),
    ({"mechanism": "output_perturbation", "parameters": SCHEDULES}, "one number here"),
]


def test_a_policy_that_no_mechanism_can_keep_is_refused_with_the_reason(digits: TestClient) -> None:
    for policy, reason in REFUSED:
        answer = digits.post("/v1/models", json=model(**policy))
        assert answer.status_code == 422, reason
        assert reason in answer.json()["detail"]

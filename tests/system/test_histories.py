"""No certificate claims noise or steps that its lineage's history does not have.

Over HTTP: every mechanism for a head, a request, a PATCH to every other one (one other in
``make test``), another request. What each certificate claims is computed again by an accountant of
the tests' own.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from fastapi.testclient import TestClient
from scipy.optimize import brentq
from scipy.stats import norm
from sqlalchemy import select

from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.tables import CertificateRow
from app.planning.mechanisms.catalogue import MECHANISMS
from app.planning.mechanisms.mechanism import Needs
from app.registry import repository as registry
from app.registry.tables import VersionRow
from app.services import Services
from tests.support.digits import DATASET, digits_parquet, head
from tests.support.independent_accountant import independent_mu
from tests.support.mechanisms import BOUNDED, CASES, of_digits

pytestmark = pytest.mark.nightly

# The policy that names a mechanism, with what it needs; {} takes the default policy.
POLICIES: dict[str, dict[str, Any]] = {"auto": {}} | {
    name: {"mechanism": name, **case.policy}
    for name, case in CASES.items()
    if MECHANISMS[name].needs in (Needs.ANY_NETWORK, Needs.LINEAR_HEAD)
    and name != "noisy_gd_nonconvex"
}
# What every lineage may change to, and what only those that began as named.
AT_ANY_TIME = (
    *("auto", "exact_training", "retraining"),
    *("gradient_clipping", "model_clipping", "output_perturbation"),
)
LATER = {
    "delete_to_descent": ["tracked_release"],
    "projected_noisy_sgd": ["tracked_release"],
    "langevin_unlearning": ["tracked_release", "projected_noisy_sgd", "noisy_gd_convex"],
    "noisy_gd_convex": ["tracked_release", "projected_noisy_sgd", "langevin_unlearning"],
    "retraining": ["tracked_release"],
}
# One change of each, for `make test`.
CHANGES = {
    "auto": "gradient_clipping",
    "exact_training": "retraining",
    "tracked_release": "exact_training",
    "delete_to_descent": "delete_to_descent",
    "projected_noisy_sgd": "output_perturbation",
    "langevin_unlearning": "noisy_gd_convex",
    "noisy_gd_convex": "projected_noisy_sgd",
    "retraining": "gradient_clipping",
    "gradient_clipping": "model_clipping",
    "model_clipping": "retraining",
    "output_perturbation": "auto",
    "dp_sgd": "dp_sgd",
}
FORGETFUL = {"parameters": {}, "epsilon": 1.0}


@pytest.fixture
def digits(api: TestClient) -> TestClient:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(120))
    return api


def statements(services: Services, name: str) -> list[dict[str, Any]]:
    """Return every statement about a model's versions, oldest first, with its tensors' digest."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        of_model = select(CertificateRow).where(CertificateRow.model_id == model.id)
        rows = session.scalars(of_model.order_by(CertificateRow.number))
        found = [statement_of(row.envelope) for row in rows]
        versions = select(VersionRow).where(VersionRow.model_id == model.id)
        tensors = {row.sha256: row.tensors_sha256 for row in session.scalars(versions)}
    return [
        each | {"tensors": tensors[each["subject"][0]["digest"]["sha256"]]}
        for each in found
        if "mechanism" in each["predicate"]
    ]


def require_true(statement: dict[str, Any], before: dict[str, Any] | None) -> None:
    """Check a statement by what its history says, and against the one before."""
    predicate = statement["predicate"]
    mechanism, guarantee = predicate["mechanism"], predicate["guarantee"]
    history = mechanism["parameters"].get("history")
    if history is not None:
        mu = independent_mu(history, adaptive=guarantee["adaptive"])
        assert guarantee["mu"] >= mu * (1 - 1e-9)
        target = predicate["target"]["delta"]
        assert guarantee["epsilon"] >= epsilon_of(mu, target) * (1 - 1e-6) - 1e-9
        assert guarantee["epsilon"] <= predicate["target"]["epsilon"]
        _require_forgotten(history, predicate["forgotten"])
    if before is not None:
        again = before["predicate"]["model"] == predicate["model"]
        same = before["tensors"] == statement["tensors"]
        assert same == (again or not _moved(mechanism)), mechanism["name"]


def epsilon_of(mu: float, delta: float) -> float:
    """Return epsilon of mu-GDP at delta (docs/guarantees.md, section 1)."""

    def excess(epsilon: float) -> float:
        low, high = norm.cdf(-epsilon / mu + mu / 2), norm.logcdf(-epsilon / mu - mu / 2)
        return float(low - math.exp(epsilon + high) - delta)

    return 0.0 if mu == 0 or excess(0.0) <= 0 else float(brentq(excess, 0.0, 700.0))


def _require_forgotten(history: dict[str, Any], forgotten: dict[str, Any]) -> None:
    requests = [event["forget"] for event in history["events"] if "forget" in event]
    counted = sum(count for request in requests for _, count in request)
    assert counted + forgotten["before_training"] == forgotten["records"]


def _moved(mechanism: dict[str, Any]) -> bool:
    """Say whether the last run changed weights by what its certificate says."""
    if mechanism["name"] == "dp_sgd":
        return mechanism["noise"] is not None
    history = mechanism["parameters"].get("history")
    if history is None:
        return True
    ends = [at for at, event in enumerate(history["events"]) if "release" in event]
    last = history["events"][ends[-2] + 1 :] if len(ends) > 1 else history["events"]
    return any("steps" in event or event.get("release") for event in last)


def live(
    api: TestClient, services: Services, work: Callable[[], None], pairs: list[tuple[str, str]]
) -> None:
    """Train each pair's model under its first policy, forget, change to the second, and forget.

    Before the change, every policy that the first one refuses is asked for, and changes nothing.
    """
    names = {pair: "-".join(pair) for pair in pairs}
    for (first, _), name in names.items():
        answer = api.post("/v1/models", json=head(name, **POLICIES[first]))
        assert answer.status_code == 201, answer.text
    work()
    forget(api, "subject-3")
    work()
    for (first, second), name in names.items():
        require_refusals(api, name, first)
        assert change(api, name, second) == 200, name
    forget(api, "subject-4")
    work()
    for name in names.values():
        found = statements(services, name)
        assert len(found) >= 2
        for before, statement in pairwise([None, *found]):
            require_true(statement, before)  # type: ignore[arg-type]


def require_refusals(api: TestClient, name: str, first: str) -> None:
    """Check that a lineage takes no policy that its history contradicts."""
    policy = api.get(f"/v1/models/{name}").json()["policy"]
    refused = set(POLICIES) - set(accepted(first))
    assert {change(api, name, second) for second in refused} == {422}
    assert api.get(f"/v1/models/{name}").json()["policy"] == policy


def change(api: TestClient, name: str, second: str) -> int:
    changes = FORGETFUL | {"mechanism": "auto"} | POLICIES[second]
    return api.patch(f"/v1/models/{name}", json={"policy": changes}).status_code


def accepted(first: str) -> list[str]:
    """Return the policies that a lineage of this first one may change to."""
    named = {first, *AT_ANY_TIME, *LATER.get(first, ())}
    return [second for second in POLICIES if second in named]


def test_a_lineage_is_certified_by_what_happened_to_it_whatever_its_policy_becomes(
    digits: TestClient, services: Services, work: Callable[[], None]
) -> None:
    live(digits, services, work, list(CHANGES.items()))


@pytest.mark.parametrize("first", POLICIES)
def test_a_lineage_is_certified_by_what_happened_to_it_after_every_other_change(
    first: str, digits: TestClient, services: Services, work: Callable[[], None]
) -> None:
    others = [second for second in accepted(first) if second != CHANGES[first]]
    live(digits, services, work, [(first, second) for second in others])


def forget(api: TestClient, subject: str) -> None:
    answer = api.post("/v1/forget-requests", json={"dataset": "digits", "subject_ids": [subject]})
    assert answer.status_code in (201, 202), answer.text


def test_a_batch_of_all_records_is_not_certified_for_doing_nothing(
    digits: TestClient, services: Services, work: Callable[[], None]
) -> None:
    """One full batch, one forgotten record: training added no noise."""
    definition = head("whole", mechanism="tracked_release")
    definition["recipe"] = {"epochs": 5, "batch_size": 1000, "held_out_fraction": 0.0}
    assert digits.post("/v1/models", json=definition).status_code == 201
    work()
    digits.post("/v1/forget-requests", json={"dataset": "digits", "record_ids": ["record-7"]})
    work()
    first, second = statements(services, "whole")
    require_true(first, None)
    require_true(second, first)
    assert second["predicate"]["guarantee"]["epsilon"] <= 1.0


def test_a_non_convex_lineage_keeps_the_constants_of_its_training(
    digits: TestClient, work: Callable[[], None]
) -> None:
    """The finding: trained at one noise, certified with another as if it had always been there."""
    definition = of_digits("noisy_gd_nonconvex", "bounded")
    assert digits.post("/v1/models", json=definition).status_code == 201
    work()
    for name in ("noise_std", "learning_rate", "weight_decay", "loss_bound"):
        changed = {**BOUNDED, name: BOUNDED[name] * 1.2}
        answer = digits.patch("/v1/models/bounded", json={"policy": {"parameters": changed}})
        assert answer.status_code == 422
        assert name in answer.json()["detail"]


def test_later_releases_top_up_to_the_policys_noise(
    digits: TestClient, services: Services, work: Callable[[], None]
) -> None:
    policy = {"mechanism": "tracked_release", "parameters": {"noise_std": 0.02}}
    assert digits.post("/v1/models", json=head("topped", **policy)).status_code == 201
    work()
    for subject in ("subject-3", "subject-4", "subject-5"):
        forget(digits, subject)
        work()
    last = statements(services, "topped")[-1]["predicate"]["mechanism"]["parameters"]["history"]
    assert len([event for event in last["events"] if "release" in event]) == 4
    assert total_noise(last) <= 0.02 * (1 + 1e-9)


def total_noise(history: dict[str, Any]) -> float:
    recipe, variance = history["recipe"], 0.0
    rate = 1 - recipe["learning_rate"] * recipe["weight_decay"]
    for event in history["events"]:
        for _ in range(event.get("steps", 0)):
            variance = rate**2 * variance + event["noise_std"] ** 2
        variance += event.get("release", 0.0) ** 2
    return variance**0.5

"""What a forget request would do: the answer of the request itself, and nothing changes."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from app.domain.states import Scope
from app.evidence.log.tables import LogEntryRow
from app.ledger.tables import ForgetRequestRow, ObligationRow, OutboxRow
from app.registry.datasets.tables import RecordRow
from tests.integration.app.api.conftest import CallerOf
from tests.support.workshop import DATASET, Workshop

HEAD = {"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25, "weight_decay": 0.05}
TRACKED = {"architecture": "linear_head", "recipe": HEAD, "mechanism": "tracked_release"}
PATH = "/v1/forget-requests/preview"


@pytest.fixture
def api(caller_of: CallerOf) -> TestClient:
    return caller_of(Scope.FORGET_WRITE, Scope.FORGET_READ)


def counts(workshop: Workshop) -> list[int]:
    """Count what a request would add to: requests, obligations, outbox, log, marks."""
    forgotten = select(func.count()).where(RecordRow.forgotten_epoch.is_not(None))
    rows = (ForgetRequestRow, ObligationRow, OutboxRow, LogEntryRow)
    with workshop.transaction() as session:
        found = [session.scalar(select(func.count()).select_from(row)) for row in rows]
        return [*found, session.scalar(forgotten)]


def previewed(api: TestClient, **named: Any) -> dict[str, Any]:
    answer = api.post(PATH, json={"dataset": DATASET, **named})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_says_what_each_model_would_do_and_changes_nothing(
    workshop: Workshop, api: TestClient
) -> None:
    for name, definition in {"head": TRACKED, "clipped": {}}.items():
        workshop.train(name, **definition)
    learned, held_out = workshop.split("head")
    before = counts(workshop)
    found = previewed(api, record_ids=[learned[0]])
    assert counts(workshop) == before
    assert found["records"] == 1
    assert not found["certified_at_once"]
    effects = {effect["model"]: effect for effect in found["models"]}
    assert effects["head"]["basis"] == "unlearned"
    assert not effects["head"]["certified_at_once"]
    assert effects["head"]["run"]["mechanism"] == "tracked_release"
    assert effects["head"]["run"]["epsilon"] <= 1.0
    assert effects["head"]["problem"] is None
    # The request itself does what was said.
    sent = api.post("/v1/forget-requests", json={"dataset": DATASET, "record_ids": [learned[0]]})
    assert {o["model"] for o in sent.json()["obligations"]} == set(effects)
    assert [sent.json()[name] for name in ("records",)] == [found["records"]]
    workshop.dispatch()
    run = next(run for run in workshop.runs() if run.kind == "unlearn")
    with workshop.transaction() as session:
        model = session.get_one(type(workshop.model("head")), run.model_id).name
    assert run.plan["mechanism"] == effects[model]["run"]["mechanism"]
    gradients = run.plan["predicted"]["gradient_computations"]
    assert effects[model]["run"]["gradient_computations"] == gradients
    assert held_out


def test_what_needs_no_run_would_be_certified_at_once(workshop: Workshop, api: TestClient) -> None:
    workshop.train("clipped")
    _, held_out = workshop.split("clipped")
    before = counts(workshop)
    found = previewed(api, record_ids=held_out[:1])
    assert found["certified_at_once"]
    (effect,) = found["models"]
    assert effect["basis"] == "excluded_from_training"
    assert effect["certified_at_once"]
    assert effect["run"] is None
    assert counts(workshop) == before


def test_the_last_records_would_take_the_model_with_them(
    workshop: Workshop, api: TestClient
) -> None:
    workshop.train("clipped")
    learned, _ = workshop.split("clipped")
    (effect,) = previewed(api, record_ids=learned)["models"]
    assert effect["withdrawn"]
    assert effect["run"] is None


def test_a_policy_that_nothing_meets_is_said_beforehand(
    workshop: Workshop, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.train("head", **(TRACKED | {"budget_epochs": 1.0, "parameters": {"noise_std": 1e-3}}))
    learned, _ = workshop.split("head")
    (effect,) = previewed(api, record_ids=learned[:1])["models"]
    assert effect["run"] is None
    assert "budget_epochs" in effect["problem"] or "noise" in effect["problem"]


def test_is_refused_as_the_request_would_be(workshop: Workshop, caller_of: CallerOf) -> None:
    reader = caller_of(Scope.FORGET_READ, Scope.MODELS_READ)
    body = {"dataset": DATASET, "record_ids": ["record-1"]}
    assert reader.post(PATH, json=body).status_code == 403
    assert caller_of().post(PATH, json=body).status_code == 401
    api = caller_of(Scope.FORGET_WRITE)
    for wrong in (
        {"dataset": DATASET, "record_ids": ["record-1", "none-such"]},
        {"dataset": "none-such", "record_ids": ["record-1"]},
        {"dataset": DATASET},
    ):
        answers = [api.post(path, json=wrong) for path in (PATH, "/v1/forget-requests")]
        assert answers[0].status_code == answers[1].status_code >= 400
        problems = [answer.json() for answer in answers]
        assert problems[0]["type"] == problems[1]["type"]
        assert problems[0]["detail"] == problems[1]["detail"]

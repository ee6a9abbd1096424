"""A model's policy, changed over HTTP."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.domain.plan import Plan
from app.evidence import log
from app.services import Services
from tests.support.workshop import Workshop

PATH = "/v1/models/model"


def _change(api: TestClient, **policy: object):
    return api.patch(PATH, json={"policy": policy})


def _type(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("urn:expunge:problem:")


def test_given_fields_change_and_the_others_stay(api: TestClient, workshop: Workshop) -> None:
    workshop.define(epsilon=2.0, window_s=5.0)
    before = api.get(PATH).json()["policy"]

    answer = _change(api, epsilon=1.5, serving="withdraw_on_request")

    assert answer.status_code == 200
    expected = {**before, "epsilon": 1.5, "serving": "withdraw_on_request"}
    assert answer.json()["policy"] == api.get(PATH).json()["policy"] == expected


def test_the_next_run_follows_it(api: TestClient, workshop: Workshop) -> None:
    workshop.train(epsilon=2.0)
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    _change(api, epsilon=1.25)

    selection = workshop.begin(workshop.lease())

    assert selection.plan.epsilon == 1.25
    run = api.get("/v1/runs").json()["items"]
    assert [Plan.from_json(r["plan"]).epsilon for r in run] == [1.25, 2.0]


def test_it_is_logged_once(api: TestClient, workshop: Workshop) -> None:
    workshop.define()
    for _ in range(2):
        assert _change(api, epsilon=1.25).status_code == 200

    with workshop.transaction() as session:
        entries = [json.loads(e.body) for e in log.entries(session, start=0, limit=100)]
    (changed,) = (entry for entry in entries if entry["kind"] == "policy.changed")
    assert (changed["model"], changed["policy"]["epsilon"]) == (workshop.model().id, 1.25)


def test_not_while_a_run_is_going(api: TestClient, workshop: Workshop) -> None:
    workshop.define()
    held = workshop.lease()
    assert _type(_change(api, epsilon=2.0)) == (409, "conflict")
    workshop.begin(held)
    assert _type(_change(api, epsilon=2.0)) == (409, "conflict")
    workshop.publish(held)
    assert _change(api, epsilon=2.0).status_code == 200


IMPOSSIBLE = [
    ({"epsilon": 0.0}, "parameter-out-of-range"),
    ({"epsilon": "1"}, "invalid-input"),
    ({"unknown": 1}, "invalid-input"),
    ({"first_release": "none"}, "invalid-input"),
    ({"adaptive": True}, "invalid-input"),
    ({"window_s": 1e9}, "invalid-input"),
    ({"mechanism": "magic"}, "no-plan"),
]


def test_a_policy_that_cannot_be_is_refused(
    api: TestClient, workshop: Workshop, subtests: pytest.Subtests
) -> None:
    workshop.define()
    for policy, name in IMPOSSIBLE:
        with subtests.test(policy=policy, name=name):
            before = api.get(PATH).json()

            assert _type(_change(api, **policy)) == (422, name)

            assert api.get(PATH).json() == before


def test_a_training_that_is_released_as_it_is_is_not_to_be_tracked(
    api: TestClient, workshop: Workshop
) -> None:
    recipe = {"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25}
    workshop.define(architecture="linear_head", recipe=recipe, first_release="as_trained")
    assert _type(_change(api, mechanism="tracked_release")) == (422, "invalid-input")
    workshop.work()
    assert _type(_change(api, mechanism="tracked_release")) == (422, "no-plan")
    assert _change(api, mechanism="retraining").status_code == 200


def test_a_mechanism_that_cannot_use_the_recipe_is_refused(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.define(recipe={"epochs": 4, "batch_size": 4, "precision": "bfloat16"})
    assert _type(_change(api, mechanism="dp_sgd")) == (422, "invalid-input")
    assert _change(api, mechanism="retraining").status_code == 200


def test_what_is_fixed_may_be_repeated(api: TestClient, workshop: Workshop) -> None:
    workshop.define()
    policy = api.get(PATH).json()["policy"]
    policy = {k: v for k, v in policy.items() if k != "parameters"}
    assert _change(api, **{**policy, "epsilon": 3.0}).json()["policy"]["epsilon"] == 3.0


def test_requests_that_waited_are_seen_to(api: TestClient, workshop: Workshop) -> None:
    workshop.train(window_s=3600.0)
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    assert workshop.active_run() is None

    _change(api, window_s=0.0)
    workshop.dispatch()

    assert workshop.active_run() is not None


def test_a_model_that_is_not_there(api: TestClient) -> None:
    assert _type(_change(api, epsilon=2.0)) == (404, "not-found")


def test_a_change_of_another_state_than_the_one_seen_is_refused(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    seen = {"If-Match": api.get("/v1/models/model").headers["etag"]}

    def change(epsilon: float) -> int:
        body = {"policy": {"epsilon": epsilon}}
        return api.patch("/v1/models/model", json=body, headers=seen).status_code

    assert [change(0.9), change(0.8), change(-1.0)] == [200, 412, 422]
    assert api.get("/v1/models/model").json()["policy"]["epsilon"] == 0.9
    seen = {"If-Match": "*"}
    assert change(0.8) == 200


def test_a_change_that_was_planned_for_another_policy_is_not_made(
    api: TestClient, workshop: Workshop, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.define()
    plan = services.planners.plan

    def overtaken(**known: Any) -> Plan:
        monkeypatch.undo()
        assert _change(api, delta=1e-6).status_code == 200
        return plan(**known)

    monkeypatch.setattr(services.planners, "plan", overtaken)
    assert _type(_change(api, epsilon=1.25)) == (409, "conflict")
    assert api.get(PATH).json()["policy"]["delta"] == 1e-6

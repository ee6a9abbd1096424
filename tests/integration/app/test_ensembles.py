"""An ensemble is shown with its members: which version trained each, and how many anew."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from app.access import api_keys
from app.cli import output
from app.cli.application import create_app
from app.cli.commands import resources
from app.domain.states import Scope
from app.services import Services
from tests.integration.app.cli.conftest import served  # noqa: F401
from tests.integration.app.web.conftest import log_in
from tests.support.digits import DATASET, RECIPE, TASK, digits_parquet

MODEL = {
    "name": "digits",
    "dataset": "digits",
    "task": TASK,
    "architecture": {
        "name": "ensemble",
        "members": 4,
        "of": {"name": "mlp", "options": {"hidden": [4]}},
    },
    "recipe": RECIPE | {"epochs": 1, "held_out_fraction": 0.2},
    "policy": {"mechanism": "sharded_retraining", "forget": "retrain"},
}
VERSIONS = "/v1/models/digits/versions"


@pytest.fixture
def versions(api: TestClient, work: Callable[[], None]) -> list[dict]:
    """An ensemble that has forgotten a person; its versions, the newest first."""
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    api.put("/v1/datasets/digits/records", content=digits_parquet(60))
    assert api.post("/v1/models", json=MODEL).status_code == 201
    work()
    for person in range(3, 15):  # the first whom a member has learned from
        body = {"dataset": "digits", "subject_ids": [f"subject-{person}"]}
        if api.post("/v1/forget-requests", json=body).status_code == 202:
            break
    work()
    return api.get(VERSIONS).json()["items"]


def test_the_answer_has_each_members_digest_and_version(api: TestClient, versions) -> None:
    newest, first = (version["members"] for version in versions)
    assert [each["trained_in"] for each in first] == [1] * 4
    assert sorted(each["trained_in"] for each in newest) == [1, 1, 1, 2]
    for place, each in enumerate(newest):
        assert len(each["sha256"]) == 64
        assert (each == first[place]) == (each["trained_in"] == 1)
    assert api.get("/v1/models/digits").json()["certified"]["members"] == newest


def test_the_card_and_the_page_say_how_many_were_trained_anew(
    api: TestClient, versions, services: Services
) -> None:
    changed = [each["trained_in"] for each in versions[0]["members"]].index(2)
    kept = ", ".join(str(place) for place in range(4) if place != changed)
    said = "4 members, 1 trained anew in this version, 3 in version 1"
    card = api.get(f"{VERSIONS}/2/card").text
    assert "| network | 4 members of mlp |" in card
    assert said in card
    assert f"| 2 | {changed} |\n| 1 | {kept} |" in card
    assert "4 members, all trained in this version" in api.get(f"{VERSIONS}/1/card").text

    visitor = TestClient(create_app(services), follow_redirects=False)
    with services.database.transaction() as session:
        _, key = api_keys.create_key(session, name="desk", scopes=[Scope.ADMIN])
    log_in(visitor, key)
    page = visitor.get("/models/digits/versions/2").text
    assert said in page
    assert f"<dt>Trained in version 2</dt><dd>{changed}</dd>" in page
    assert f"<dt>Trained in version 1</dt><dd>{kept}</dd>" in page
    assert "<dd>4 members of mlp</dd>" in visitor.get("/models/digits").text


def test_a_member_that_is_out_is_shown_until_it_is_refilled(
    api: TestClient, work: Callable[[], None], services: Services
) -> None:
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    api.put("/v1/datasets/digits/records", content=digits_parquet(60))
    body = MODEL | {"policy": {"refill_at": None}}
    assert api.post("/v1/models", json=body).status_code == 201
    work()
    assert api.post("/v1/models/digits/refill").status_code == 409
    for person in range(3, 15):  # the first whom a member has learned from
        asked = {"dataset": "digits", "subject_ids": [f"subject-{person}"]}
        answer = api.post("/v1/forget-requests", json=asked)
        if len(api.get(VERSIONS).json()["items"]) == 2:
            break
    assert (answer.status_code, answer.json()["state"]) == (201, "certified")
    newest = api.get(VERSIONS).json()["items"][0]
    out = [each["out_since"] for each in newest["members"]].index(2)
    assert newest["members"][out] == {"sha256": None, "trained_in": None, "out_since": 2}
    assert newest["warnings"] == []
    card = api.get(f"{VERSIONS}/2/card").text
    assert "4 members, 0 trained anew in this version, 3 in version 1, 1 out" in card
    assert f"| out since 2 | {out} |" in card
    visitor = TestClient(create_app(services), follow_redirects=False)
    with services.database.transaction() as session:
        _, key = api_keys.create_key(session, name="desk", scopes=[Scope.ADMIN])
    log_in(visitor, key)
    assert f"<dt>Out since version 2</dt><dd>{out}</dd>" in (
        visitor.get("/models/digits/versions/2").text
    )
    page = visitor.get("/models/digits").text
    assert "3 of 4 active, the others are trained anew by" in page

    answer = api.post("/v1/models/digits/refill")
    assert answer.status_code == 202
    assert api.get(answer.headers["Location"]).json()["kind"] == "refill"
    work()
    newest = api.get(VERSIONS).json()["items"][0]
    assert [each["trained_in"] for each in newest["members"]].count(3) == 1
    assert "4 of 4 active" in visitor.get("/models/digits").text


@pytest.mark.usefixtures("served")
def test_the_list_of_models_names_what_members_are(
    versions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    del versions
    monkeypatch.setattr(output, "_is_terminal", lambda: True)
    resources.model_list()
    assert "4 members of mlp" in capsys.readouterr().out

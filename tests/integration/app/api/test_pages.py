"""Lists: pages that hold everything once, in order, whatever arrives meanwhile."""

import base64
import json

import httpx
import pytest
from fastapi.testclient import TestClient

from app.client import ExpungeClient
from tests.support.arrays import array_schema
from tests.support.workshop import DATASET, TASK, Workshop

DEFINITION = array_schema(2).to_json()


def _walk(api: TestClient, path: str, **params: object) -> list[dict]:
    seen: list[dict] = []
    cursor: str | None = None
    while True:
        query = {**params, "limit": 2} | ({} if cursor is None else {"cursor": cursor})
        answer = api.get(path, params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= 2
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return seen
        assert len(page["items"]) == 2


def _fill(api: TestClient, workshop: Workshop) -> None:
    for name in ("e", "b", "d"):
        assert api.post("/v1/datasets", json={"name": name, **DEFINITION}).status_code == 201
        backbone = {
            "name": name,
            "architecture": {"name": "logistic"},
            "input": {"shape": [2]},
            "classes": 2,
            "source": "a paper",
        }
        assert api.post("/v1/backbones", json=backbone).status_code == 201
        model = {
            "name": name,
            "dataset": DATASET,
            "task": TASK,
            "architecture": {"name": "logistic"},
        }
        assert api.post("/v1/models", json=model).status_code == 201
        key = {"name": name, "scopes": ["log:read"]}
        assert api.post("/v1/api-keys", json=key).status_code == 201


def test_lists_by_name(api: TestClient, workshop: Workshop) -> None:
    _fill(api, workshop)

    for path, extra in (("datasets", [DATASET]), ("backbones", []), ("models", [])):
        names = [item["name"] for item in _walk(api, f"/v1/{path}")]
        assert names == sorted(["b", "d", "e", *extra])


def test_lists_by_time(api: TestClient, workshop: Workshop) -> None:
    _fill(api, workshop)

    assert [k["name"] for k in _walk(api, "/v1/api-keys")] == ["d", "b", "e", "test", "admin"]
    assert [run["model"] for run in _walk(api, "/v1/runs")] == ["d", "b", "e"]


def test_runs_of_one_model_and_state(api: TestClient, workshop: Workshop) -> None:
    _fill(api, workshop)
    workshop.train()
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()

    def kinds(**params: str) -> list[str]:
        return [run["kind"] for run in _walk(api, "/v1/runs", **params)]

    assert kinds(model="model") == ["unlearn", "train"]
    assert kinds(model="model", state="published") == ["train"]
    assert kinds(model="nothing") == []
    assert kinds(state="queued") == ["unlearn", "train", "train", "train"]


def test_models_of_one_dataset(api: TestClient, workshop: Workshop) -> None:
    _fill(api, workshop)

    assert len(_walk(api, "/v1/models", dataset=DATASET)) == 3
    assert _walk(api, "/v1/models", dataset="b") == []


def test_versions_newest_first(api: TestClient, workshop: Workshop) -> None:
    workshop.train()
    for record in workshop.split()[0][:3]:
        workshop.forget(record)
        workshop.unlearn()

    path = "/v1/models/model/versions"
    assert [v["number"] for v in _walk(api, path)] == [4, 3, 2, 1]
    assert [v["number"] for v in _walk(api, path, state="certified")] == [4]
    assert [v["number"] for v in _walk(api, path, state="retired")] == [3, 2, 1]
    assert api.get(path, params={"state": "private"}).status_code == 422


def test_requests_newest_first(api: TestClient, workshop: Workshop) -> None:
    workshop.train()
    made = [workshop.forget(record) for record in workshop.split()[0][:5]]

    path = "/v1/forget-requests"
    assert [request["id"] for request in _walk(api, path)] == made[::-1]
    assert _walk(api, path, model="other") == _walk(api, path, state="failed") == []
    assert len(_walk(api, path, model="model", state="accepted")) == 5


def test_what_arrives_meanwhile_does_not_shift_the_pages(
    api: TestClient, workshop: Workshop
) -> None:
    _fill(api, workshop)
    first = api.get("/v1/datasets", params={"limit": 2}).json()
    api.post("/v1/datasets", json={"name": "a", **DEFINITION})

    rest = api.get("/v1/datasets", params={"cursor": first["next_cursor"]}).json()

    assert [d["name"] for d in first["items"] + rest["items"]] == ["b", "d", "e", DATASET]


LISTS = ["datasets", "backbones", "models", "models/model/versions", "runs", "api-keys",
         "forget-requests", "callbacks"]  # fmt: skip


def test_a_foreign_cursor_is_refused(
    api: TestClient, workshop: Workshop, subtests: pytest.Subtests
) -> None:
    workshop.define()
    for path in LISTS:
        with subtests.test(path=path):
            halves = (["\ud800"], ["2026-01-02T00:00:00+00:00", "\ud800"])
            torn = [base64.urlsafe_b64encode(json.dumps(half).encode()).decode() for half in halves]
            for cursor in ("junk", "W10=", "WzEsMiwzXQ==", "bnVsbA==", "e30=", *torn):
                answer = api.get(f"/v1/{path}", params={"cursor": cursor})
                assert (answer.status_code, "cursor" in answer.json()["detail"]) == (422, True), (
                    cursor
                )
            assert api.get(f"/v1/{path}", params={"limit": 201}).status_code == 422


def test_the_client_reads_all_pages(api: TestClient, admin_key: str, workshop: Workshop) -> None:
    for number in range(60):
        api.post("/v1/datasets", json={"name": f"d{number:02}", **DEFINITION})

    def answer(request: httpx.Request) -> httpx.Response:
        given = api.request(request.method, str(request.url), headers=dict(request.headers))
        return httpx.Response(given.status_code, content=given.content)

    client = ExpungeClient("http://testserver", admin_key, transport=httpx.MockTransport(answer))

    names = [dataset["name"] for dataset in client.datasets()]

    assert len(names) == 61
    assert names == sorted(names)
    assert client.runs(model="nothing") == []
    keys = client.keys()
    assert [key["name"] for key in keys] == ["test", "admin"]

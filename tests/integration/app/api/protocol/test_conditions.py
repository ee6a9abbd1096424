"""Entity tags of JSON answers."""

import pytest
from fastapi.testclient import TestClient

from tests.support.workshop import DATASET, Workshop

PATHS = [
    "/v1/datasets",
    f"/v1/datasets/{DATASET}",
    "/v1/models",
    "/v1/models/model",
    "/v1/models/model/certified",
    "/v1/models/model/versions",
    "/v1/models/model/versions/1/certificate",
    "/v1/backbones",
    "/v1/runs",
    "/v1/forget-requests",
    "/v1/api-keys",
    "/v1/log/entries",
    "/v1/log/entries/0",
    "/.well-known/expunge-keys.json",
]


def test_what_a_caller_holds_is_not_sent_again(
    api: TestClient, workshop: Workshop, subtests: pytest.Subtests
) -> None:
    workshop.train()
    for path in PATHS:
        with subtests.test(path=path):
            first = api.get(path)
            etag = first.headers["etag"]
            assert first.status_code == 200
            assert etag.startswith('"')
            assert first.headers["cache-control"] == "private, no-cache"

            for held in (etag, f"W/{etag}", f'"x", {etag}', "*"):
                again = api.get(path, headers={"If-None-Match": held})
                assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
                assert "content-type" not in again.headers
            other = api.get(path, headers={"If-None-Match": '"x"'})
            assert (other.status_code, other.content) == (200, first.content)


def test_another_state_has_another_tag(api: TestClient, workshop: Workshop) -> None:
    before = api.get(f"/v1/datasets/{DATASET}").headers["etag"]
    workshop.push(3, first=100)

    after = api.get(f"/v1/datasets/{DATASET}", headers={"If-None-Match": before})

    assert after.status_code == 200
    assert after.headers["etag"] != before
    stale = api.get(f"/v1/datasets/{DATASET}", headers={"If-Match": before})
    assert (stale.status_code, stale.json()["type"].rpartition(":")[2]) == (
        412,
        "precondition-failed",
    )


def test_errors_and_health_of_others_have_no_tag(api: TestClient, workshop: Workshop) -> None:
    assert "etag" not in api.get("/v1/models/nothing", headers={"If-None-Match": "*"}).headers
    assert api.get("/v1/models/nothing", headers={"If-None-Match": "*"}).status_code == 404
    assert "etag" not in api.post("/v1/plans", json={}).headers
    assert "etag" not in api.get("/v1/models/model/versions/1/card").headers

"""Callbacks over HTTP: the list, the dead, the secret."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from app.domain.states import Scope
from app.services import Services
from tests.support.dumps import everything_in_postgres
from tests.support.workshop import DATASET, Workshop

URL = "https://privacy.example/callbacks?token=sesame-4711"


@pytest.fixture
def asked(api: TestClient, workshop: Workshop) -> str:
    """A request with a callback; its id."""
    return ask(api, workshop, "record-1")


def ask(api: TestClient, workshop: Workshop, record: str) -> str:
    """Have a record forgotten and erased; return the request's id."""
    body = {"dataset": DATASET, "record_ids": [record], "status_callback_urls": [URL]}
    answer = api.post("/v1/forget-requests", json=body)
    assert answer.status_code == 201, answer.text
    workshop.services.clean_up()
    assert "sesame" not in answer.text
    return answer.json()["id"]


def test_callbacks_are_listed_without_their_addresses(
    api: TestClient, workshop: Workshop, asked: str
) -> None:
    ask(api, workshop, "record-2")

    page = api.get("/v1/callbacks", params={"request": asked}).json()

    assert [c["type"] for c in page["items"]] == [
        f"forget_request.{state}" for state in ("completed", "certified", "accepted")
    ]
    assert page["next_cursor"] is None
    first = page["items"][-1]
    assert (first["state"], first["attempts"], first["request"]) == ("pending", 0, asked)
    assert first["redeliverable"] is True
    assert "sesame" not in str(page)
    assert "privacy.example" not in str(page)
    assert len(api.get("/v1/callbacks").json()["items"]) == 6


def test_the_list_is_read_in_pages(api: TestClient, workshop: Workshop, asked: str) -> None:
    ask(api, workshop, "record-2")
    found, cursor = [], None
    for _ in range(3):
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = api.get("/v1/callbacks", params=params).json()
        found += [c["id"] for c in page["items"]]
        cursor = page["next_cursor"]
    assert cursor is None
    assert found == [c["id"] for c in api.get("/v1/callbacks").json()["items"]]
    assert len(set(found)) == 6
    assert api.get("/v1/callbacks", params={"cursor": "x"}).status_code == 422
    assert api.get("/v1/callbacks", params={"state": "lost"}).status_code == 422


def test_a_dead_callback_is_found_and_delivered_again(
    api: TestClient, asked: str, services: Services
) -> None:
    with services.database.transaction() as session:
        session.execute(
            text(
                "UPDATE callback_events SET state = 'dead', next_attempt_at = NULL, attempts = 10,"
                " failure = 'it answered 500' WHERE sequence = 1"
            )
        )
    (dead,) = api.get("/v1/callbacks", params={"state": "dead"}).json()["items"]
    assert (dead["attempts"], dead["failure"]) == (10, "it answered 500")

    again = api.post(f"/v1/callbacks/{dead['id']}/redeliver")

    assert again.status_code == 202
    assert (again.json()["state"], again.json()["attempts"]) == ("pending", 0)
    assert again.json()["next_attempt_at"] is not None
    assert api.get("/v1/callbacks", params={"state": "dead"}).json()["items"] == []


def test_what_has_no_address_any_more_cannot_be_delivered(
    api: TestClient, asked: str, services: Services
) -> None:
    with services.database.transaction() as session:
        session.execute(
            text("UPDATE callback_endpoints SET state = 'closed', url = NULL, url_digest = NULL")
        )
    callback = api.get("/v1/callbacks").json()["items"][0]
    assert callback["redeliverable"] is False
    gone = api.post(f"/v1/callbacks/{callback['id']}/redeliver")
    assert (gone.status_code, gone.json()["type"]) == (410, "urn:expunge:problem:gone")
    assert api.post("/v1/callbacks/evt_nobody/redeliver").status_code == 404


BAD_ADDRESSES = [
    ["http://privacy.example/sesame"],
    ["https://10.0.0.1/sesame"],
    ["https://user:sesame@privacy.example/"],
    ["https://privacy.example/sesame#x"],
    [""],
    ["https://privacy.example/" + "sesame" * 400],
    [f"https://privacy.example/{i}" for i in range(6)],
    "https://privacy.example/sesame",
]


def test_bad_addresses_are_refused_and_not_quoted(
    api: TestClient, workshop: Workshop, subtests: pytest.Subtests
) -> None:
    for urls in BAD_ADDRESSES:
        with subtests.test(urls=urls):
            body = {"dataset": DATASET, "record_ids": ["record-1"], "status_callback_urls": urls}
            answer = api.post("/v1/forget-requests", json=body)
            assert answer.status_code == 422
            assert "status_callback_urls" in answer.text
            assert "sesame" not in answer.text


def test_every_key_has_a_secret_of_its_own_which_is_stored_nowhere(
    caller_of: Callable[..., TestClient], services: Services
) -> None:
    one, other = caller_of(Scope.FORGET_WRITE), caller_of(Scope.FORGET_WRITE)
    first = one.get("/v1/callback-secret")
    assert first.headers["cache-control"] == "no-store"
    assert first.json()["secret"].startswith("whsec_")
    assert first.json() == one.get("/v1/callback-secret").json()
    assert (first.json()["rotated_at"], first.json()["previous_until"]) == (None, None)
    assert other.get("/v1/callback-secret").json()["secret"] != first.json()["secret"]

    second = one.post("/v1/callback-secret/rotate").json()
    third = one.post("/v1/callback-secret/rotate").json()

    assert len({first.json()["secret"], second["secret"], third["secret"]}) == 3
    assert third["previous_until"] > third["rotated_at"] > second["rotated_at"]
    assert one.get("/v1/callback-secret").json() == third
    dump = everything_in_postgres(services.database.engine)
    assert third["secret"].removeprefix("whsec_") not in dump
    assert dump.count("callback_secret.rotated") == 4  # two entries: the kind, and the body

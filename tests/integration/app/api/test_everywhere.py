"""A person is forgotten everywhere by one call: all or nothing, once, found by the caller's id."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.domain.states import Scope
from app.registry.datasets.service import define_dataset
from tests.integration.app.api.conftest import CallerOf
from tests.integration.app.api.test_preview import counts
from tests.support.arrays import array_schema
from tests.support.workshop import DATASET, Workshop, records_parquet

PATH = "/v1/forget-requests"
ONE = {"subject_ids": ["subject-1"]}


@pytest.fixture
def api(caller_of: CallerOf) -> TestClient:
    return caller_of(Scope.FORGET_WRITE, Scope.FORGET_READ)


@pytest.fixture(autouse=True)
def datasets(workshop: Workshop) -> None:
    """Two datasets that know a person, one that knows nobody, and a public one."""
    schema = array_schema(2)
    for name, rows in {"more": 8, "a first": 4, "open": 8}.items():
        with workshop.transaction() as session:
            define_dataset(session, name=name, schema=schema, public=name == "open")
        workshop.services.records.push(name, records_parquet(rows))


def made(answer: Any) -> dict[str, Any]:
    assert answer.status_code in (201, 202), answer.text
    found = {each["dataset"]: each for each in answer.json()["requests"]}
    assert len(found) == len(answer.json()["requests"])
    return found


def test_each_dataset_that_knows_a_person_has_a_request(
    workshop: Workshop, api: TestClient
) -> None:
    workshop.train()
    answer = api.post(PATH, json=ONE)
    found = made(answer)
    assert list(found) == ["more", DATASET]
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"{PATH}/{found['more']['id']}"
    assert [each["records"] for each in found.values()] == [4, 4]
    for each in found.values():
        shown = api.get(f"{PATH}/{each['id']}").json()
        assert shown | {"external_id": None} == each
    assert [owed["model"] for owed in found[DATASET]["obligations"]] == ["model"]


@pytest.mark.parametrize("named", [ONE, {"record_ids": ["record-4"]}])
def test_records_of_a_public_dataset_are_not_forgotten(
    api: TestClient, named: dict[str, list[str]]
) -> None:
    answer = api.post(PATH, json={"dataset": "open", **named})
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:expunge:problem:public-dataset"
    assert "nobody can ask" in answer.json()["detail"]


def test_sent_again_it_is_the_same_whatever_became_known_since(
    workshop: Workshop, api: TestClient
) -> None:
    body = {**ONE, "external_id": "T 1"}
    first = made(api.post(PATH, json=body))
    assert list(first) == ["more", DATASET]
    workshop.services.records.push("a first", records_parquet(8))  # now it knows the person, too
    before = counts(workshop)
    again = made(api.post(PATH, json=body))
    assert [each["id"] for each in again.values()] == [each["id"] for each in first.values()]
    assert counts(workshop) == before
    other = api.post(PATH, json=body | {"subject_ids": ["subject-0"]})
    assert (other.status_code, "another body" in other.text) == (422, True), other.text
    found = api.get(PATH, params={"external_id": "T 1"}).json()["items"]
    assert {each["dataset"] for each in found} == {"more", DATASET}


def test_calls_at_the_same_time_make_one_request(workshop: Workshop, api: TestClient) -> None:
    body = {**ONE, "external_id": "T 2"}
    with ThreadPoolExecutor(4) as pool:
        found = [made(each) for each in pool.map(lambda _: api.post(PATH, json=body), range(4))]
    assert len({each["id"] for answer in found for each in answer.values()}) == 2


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"subject_ids": ["nobody"]}, 422, "nobody"),
        ({"subject_ids": ["subject-1", "nobody"]}, 422, "nobody"),
        ({"subject_ids": ["record-1"]}, 422, "record-1"),
        ({"record_ids": ["record-1"]}, 422, "record_ids have one dataset"),
        ({**ONE, "record_ids": ["record-1"]}, 422, "record_ids have one dataset"),
        ({"subject_ids": []}, 422, "name subject_ids"),
        ({}, 422, "name subject_ids"),
        ({**ONE, "status_callback_urls": ["ftp://x"]}, 422, "status_callback_urls"),
        ({**ONE, "dataset": ""}, 422, "dataset"),
    ],
)
def test_what_cannot_be_done_everywhere_is_done_nowhere(
    workshop: Workshop, api: TestClient, body: dict[str, Any], status: int, words: str
) -> None:
    before = counts(workshop)
    for path in (PATH, f"{PATH}/preview"):
        if "status_callback_urls" not in body or path == PATH:
            answer = api.post(path, json=body)
            assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert counts(workshop) == before


def test_one_part_that_is_refused_refuses_all(
    workshop: Workshop, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second dataset's part has the name of an earlier request of the same caller."""
    taken = {"dataset": DATASET, "subject_ids": ["subject-2"], "external_id": f"T 3/{DATASET}"}
    assert api.post(PATH, json=taken).status_code in (201, 202)
    before = counts(workshop)
    answer = api.post(PATH, json={**ONE, "external_id": "T 3"})
    assert (answer.status_code, "used before" in answer.text) == (422, True)
    assert counts(workshop) == before


def test_a_preview_says_what_each_part_would_do(workshop: Workshop, api: TestClient) -> None:
    workshop.train()
    before = counts(workshop)
    previews = api.post(f"{PATH}/preview", json=ONE).json()["previews"]
    assert counts(workshop) == before
    assert [(each["dataset"], each["records"]) for each in previews] == [("more", 4), (DATASET, 4)]
    assert [[effect["model"] for effect in each["models"]] for each in previews] == [[], ["model"]]

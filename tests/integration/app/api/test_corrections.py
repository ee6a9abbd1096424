"""Corrections by a forget request: rows take the place of what is forgotten, in one transaction."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from app.domain.states import Scope
from app.registry.datasets import repository as datasets
from tests.integration.app.api.conftest import CallerOf
from tests.support.logbook import faults
from tests.support.workshop import DATASET, Workshop

PATH = "/v1/forget-requests"


@pytest.fixture
def trained(workshop: Workshop) -> list[str]:
    """Records that a model was trained on."""
    workshop.train()
    return workshop.split()[0]


def row(record: str, **changed: object) -> dict[str, Any]:
    return {
        "record_id": record,
        "subject_id": "subject-0",
        "features": [0.5, 0.25],
        "label": 1,
    } | changed


def correct(api: TestClient, *rows: dict[str, Any], **named: object) -> Response:
    return api.post(PATH, json={"dataset": DATASET, "replacement": rows, **named})


def counts(workshop: Workshop) -> tuple[int, int, int]:
    with workshop.transaction() as session:
        return datasets.counts(session, datasets.dataset_named(session, DATASET).id)


def test_a_corrected_record_takes_the_place_of_the_one_that_every_model_forgets(
    workshop: Workshop, api: TestClient, trained: list[str]
) -> None:
    workshop.train("second")
    before = counts(workshop)[0]

    made = correct(api, row(trained[0]), record_ids=[trained[0]]).json()

    assert (made["records"], made["replacements"]) == (1, 1)
    assert {owed["model"] for owed in made["obligations"]} == {"model", "second"}
    assert counts(workshop)[0] == before
    workshop.dispatch()
    for name in ("model", "second"):
        workshop.work(name)
    workshop.services.clean_up()
    assert api.get(f"{PATH}/{made['id']}").json()["state"] == "completed"
    certificates = api.get(f"{PATH}/{made['id']}/certificates").json()
    assert sorted(each["model"] for each in certificates) == ["model", "second"]
    # The new row is another record, which the next training learns from.
    later = api.post(PATH, json={"dataset": DATASET, "record_ids": [trained[0]]}).json()
    assert later["records"] == 2
    assert faults(workshop.services) == []


def test_a_persons_rows_may_become_fewer_and_others(
    workshop: Workshop, api: TestClient, trained: list[str]
) -> None:
    before = counts(workshop)[0]
    made = correct(api, row("a new id", label=0), subject_ids=["subject-0"]).json()
    assert (made["records"], made["replacements"]) == (4, 1)
    assert counts(workshop)[0] == before - 3
    assert faults(workshop.services) == []


def test_a_correction_that_cannot_be_stored_forgets_nothing(
    workshop: Workshop, api: TestClient, trained: list[str]
) -> None:
    mine, other = trained[0], "record-39"
    before = counts(workshop)
    for rows, named, status in (
        ([row(mine, label="secret")], {"record_ids": [mine]}, 422),
        ([row(mine, features=[1.0])], {"record_ids": [mine]}, 422),
        ([{"record_id": mine}], {"record_ids": [mine]}, 422),
        ([row(mine), row(mine)], {"record_ids": [mine]}, 422),
        ([row(mine, label=1), row("record-1", label=[1])], {"subject_ids": ["subject-0"]}, 422),
        ([row(other, subject_id="subject-9")], {"record_ids": [mine]}, 422),  # of nobody named
        ([row(other)], {"subject_ids": ["subject-0"]}, 409),  # it is another person's, and stays
        ([row(mine)], {"record_ids": ["unknown"], "subject_ids": ["subject-0"]}, 422),
        ([row(mine)], {"record_ids": [mine], "hold": True}, 422),
        ([row(mine)], {"dataset": None, "subject_ids": ["subject-0"]}, 422),
    ):
        answer = correct(api, *rows, **named)
        assert answer.status_code == status, (rows, answer.text)
        assert "secret" not in answer.text
        assert counts(workshop) == before
    assert api.get(PATH).json()["items"] == []


def test_a_repeated_correction_is_made_once(
    workshop: Workshop, api: TestClient, trained: list[str]
) -> None:
    named = {"record_ids": [trained[0]], "external_id": "T 1"}
    first = correct(api, row(trained[0]), **named).json()
    before = counts(workshop)
    again = correct(api, row(trained[0]), **named)
    assert (again.json()["id"], counts(workshop)) == (first["id"], before)
    assert correct(api, row(trained[0], label=0), **named).status_code == 422
    # Forgotten since, it does not come back with the call that is repeated.
    api.post(PATH, json={"dataset": DATASET, "record_ids": [trained[0]]})
    gone = counts(workshop)
    correct(api, row(trained[0]), **named)
    assert counts(workshop) == gone


def test_a_correction_needs_the_scope_to_push_too(caller_of: CallerOf, trained: list[str]) -> None:
    answer = correct(caller_of(Scope.FORGET_WRITE), row(trained[0]), record_ids=[trained[0]])
    assert answer.status_code == 403
    assert "data:write" in answer.text
    both = caller_of(Scope.FORGET_WRITE, Scope.DATA_WRITE)
    assert correct(both, row(trained[0]), record_ids=[trained[0]]).status_code == 202

"""Requests that a person decides on: held, accepted, refused, reopened, extended."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError

from app.domain.states import Scope
from app.evidence.log.tables import LogEntryRow
from app.ledger import deadlines
from app.ledger.certificates import issuing
from app.operations.monitoring import collector
from app.registry.datasets import repository as datasets
from tests.integration.app.api.conftest import CallerOf
from tests.support.emptying import unguarded
from tests.support.logbook import faults
from tests.support.workshop import DATASET, Workshop

Age = Callable[..., None]
PATH = "/v1/forget-requests"
TAXES = {"ground": "17(3)(b)", "explanation": "Kept for the tax office."}


@pytest.fixture
def trained(workshop: Workshop) -> list[str]:
    """Records that a model was trained on."""
    workshop.train()
    return workshop.split()[0]


@pytest.fixture
def age(workshop: Workshop, app_database: Engine) -> Age:
    """Let a request have been received earlier by so many days."""

    def change(request: Mapping[str, Any], *, days: int) -> None:
        workshop.forged = True
        earlier = "received_at = received_at - make_interval(days => :d)"
        with app_database.begin() as connection, unguarded(connection):
            connection.execute(
                text(
                    f"UPDATE forget_requests SET {earlier},"
                    f" {earlier.replace('received', 'due')} WHERE id = :id"
                ),
                {"d": days, "id": request["id"]},
            )

    return change


def held(api: TestClient, *records: str, **more: object) -> dict[str, Any]:
    body = {"dataset": DATASET, "record_ids": records, "hold": True, **more}
    answer = api.post(PATH, json=body)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    assert found["state"] == "received"
    assert found["obligations"] == []
    return found


def decide(api: TestClient, request: Mapping[str, Any], how: str, **body: object) -> Response:
    path = f"{PATH}/{request['id']}/{how}"
    return api.post(path, json=body) if body else api.post(path)


def shown(api: TestClient, request: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{PATH}/{request['id']}").json()
    return found


def logged(workshop: Workshop, kind: str) -> list[dict[str, Any]]:
    with workshop.transaction() as session:
        query = select(LogEntryRow.body).where(LogEntryRow.kind == kind)
        return [json.loads(body) for body in session.scalars(query)]


def remembered(workshop: Workshop) -> int:
    with workshop.transaction() as session:
        return datasets.counts(session, datasets.dataset_named(session, DATASET).id)[0]


def test_nothing_is_forgotten_until_a_held_request_is_accepted(
    workshop: Workshop, api: TestClient, trained: list[str]
) -> None:
    before = remembered(workshop)
    request = held(api, trained[0])
    workshop.services.clean_up()
    assert remembered(workshop) == before
    # Another one is met meanwhile: its certificate says nothing of what is held.
    other = api.post(PATH, json={"dataset": DATASET, "record_ids": [trained[1]]}).json()
    workshop.unlearn()
    (certificate,) = api.get(f"{PATH}/{other['id']}/certificates").json()
    with workshop.transaction() as session:
        predicate = issuing.predicate_of(session, certificate["certificate"])
    assert predicate["forgotten"]["records"] == 1
    assert api.get(f"{PATH}/{request['id']}/certificates").json() == []

    accepted = decide(api, request, "accept").json()

    assert accepted["state"] == "accepted"
    assert accepted["receipt_salt"] == request["receipt_salt"]
    assert accepted["due_at"] == request["due_at"]
    assert [owed["state"] for owed in accepted["obligations"]] == ["open"]
    assert remembered(workshop) == before - 2
    assert decide(api, request, "accept").json() == accepted  # once
    workshop.unlearn()
    workshop.services.clean_up()
    assert shown(api, request)["state"] == "completed"
    assert faults(workshop.services) == []


def test_acceptance_reaches_what_was_there_when_the_request_came(
    workshop: Workshop, api: TestClient, trained: list[str]
) -> None:
    request = held(api, trained[0])
    assert workshop.replace(trained[0]).forget_request is not None
    stored = remembered(workshop)
    decide(api, request, "accept")
    assert remembered(workshop) == stored  # the corrected row is another record
    api.post(PATH, json={"dataset": DATASET, "record_ids": [trained[0]]})
    assert remembered(workshop) == stored - 1


def test_a_refused_request_ends_and_can_be_reopened(
    workshop: Workshop, api: TestClient, trained: list[str]
) -> None:
    before = remembered(workshop)
    request = held(api, trained[0])

    refused = decide(api, request, "refuse", **TAXES).json()

    assert (refused["state"], refused["ground"]) == ("refused", TAXES["ground"])
    assert refused["explanation"] == TAXES["explanation"]
    assert decide(api, request, "refuse", **TAXES).json() == refused
    for how, body in (
        ("refuse", TAXES | {"ground": "17(3)(e)"}),
        ("accept", {}),
        ("extend", {"reason": "much to do"}),
    ):
        assert decide(api, request, how, **body).status_code == 409, how
    assert api.delete(f"{PATH}/{request['id']}").status_code == 409
    workshop.services.clean_up()
    assert remembered(workshop) == before
    (entry,) = logged(workshop, "request.refused")
    assert (entry["request"], entry["ground"]) == (request["id"], "17(3)(b)")
    assert entry["by"].startswith("key_")
    assert f"forget_requests/{request['id']}" in entry["rows"]
    assert "tax office" not in json.dumps(entry)

    reopened = decide(api, request, "reopen").json()
    assert (reopened["state"], reopened["ground"], reopened["explanation"]) == (
        *("received", None, None),
    )
    assert decide(api, request, "reopen").json() == reopened
    assert decide(api, request, "accept").json()["state"] == "accepted"
    assert decide(api, request, "refuse", **TAXES).status_code == 409
    assert decide(api, request, "reopen").status_code == 409
    assert remembered(workshop) == before - 1
    assert faults(workshop.services) == []


def test_another_ground_is_explained(api: TestClient, trained: list[str]) -> None:
    request = held(api, trained[0])
    for body in (
        {"ground": "other"},
        {"ground": "other", "explanation": "  "},
        {"ground": "17(3)(f)", "explanation": "no such"},
        {"ground": "other", "explanation": "x" * 2001},
    ):
        assert decide(api, request, "refuse", **body).status_code == 422, body
    body = {"ground": "other", "explanation": "We do not know who asks."}
    assert decide(api, request, "refuse", **body).json()["state"] == "refused"


def test_the_deadline_is_extended_once_by_two_months_and_warned_of_again(
    workshop: Workshop, api: TestClient, trained: list[str], age: Age
) -> None:
    request = held(api, trained[0])
    age(request, days=29)
    with workshop.transaction() as session:
        assert [w.kind for w in deadlines.note_deadlines(session)] == [deadlines.DUE_SOON]
    due = shown(api, request)["due_at"]

    extended = decide(api, request, "extend", reason="many requests").json()

    assert extended["extension_reason"] == "many requests"
    assert 59 <= days_between(due, extended["due_at"]) <= 62
    assert decide(api, request, "extend", reason="many requests").json() == extended
    assert decide(api, request, "extend", reason="more time").status_code == 409
    assert shown(api, request) == extended
    (entry,) = logged(workshop, "request.extended")
    assert entry["by"].startswith("key_")
    age(request, days=61)
    with workshop.transaction() as session:
        assert [w.kind for w in deadlines.note_deadlines(session)] == [deadlines.DUE_SOON]


def test_only_an_open_deadline_is_extended(
    workshop: Workshop, api: TestClient, trained: list[str], age: Age
) -> None:
    late = held(api, trained[0])
    age(late, days=31)
    assert decide(api, late, "extend", reason="late").status_code == 409
    done = api.post(PATH, json={"dataset": DATASET, "record_ids": [trained[1]]}).json()
    workshop.unlearn()
    workshop.services.clean_up()
    assert shown(api, done)["state"] == "completed"
    assert decide(api, done, "extend", reason="done").status_code == 409


def test_a_received_request_is_overdue_and_a_refused_one_is_not(
    workshop: Workshop, api: TestClient, trained: list[str], age: Age
) -> None:
    request = held(api, trained[0])
    age(request, days=40)
    with workshop.transaction() as session:
        assert collector.overdue_requests(session) == 1
        assert collector.requests_by_state(session)["received"] == 1
    decide(api, request, "refuse", **TAXES)
    with workshop.transaction() as session:
        assert collector.overdue_requests(session) == 0
        assert deadlines.note_deadlines(session) == []


def test_a_later_request_for_records_of_a_refused_one_is_met(
    workshop: Workshop, api: TestClient, trained: list[str]
) -> None:
    refused = held(api, trained[0])
    decide(api, refused, "refuse", **TAXES)
    later = api.post(PATH, json={"dataset": DATASET, "record_ids": [trained[0]]}).json()
    workshop.unlearn()
    workshop.services.clean_up()
    assert shown(api, later)["state"] == "completed"
    assert shown(api, refused)["obligations"] == []
    # Reopened and accepted, it names what is forgotten and erased by now.
    decide(api, refused, "reopen")
    assert decide(api, refused, "accept").json()["state"] == "certified"
    workshop.services.clean_up()
    assert shown(api, refused)["state"] == "completed"
    assert faults(workshop.services) == []


def test_one_of_a_refusal_and_an_acceptance_at_the_same_time_wins(
    workshop: Workshop, api: TestClient, trained: list[str]
) -> None:
    requests = [held(api, each) for each in trained[:4]]
    calls = [
        (request, how, body)
        for request in requests
        for how, body in (("accept", {}), ("refuse", TAXES), ("accept", {}), ("refuse", TAXES))
    ]
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda call: decide(api, call[0], call[1], **call[2]), calls))
    for number, request in enumerate(requests):
        mine = [answer.status_code for answer in codes[4 * number : 4 * number + 4]]
        won = shown(api, request)["state"]
        assert mine == ([200, 409, 200, 409] if won == "accepted" else [409, 200, 409, 200])
    assert faults(workshop.services) == []


def test_a_repeated_call_gets_the_request_that_was_held(
    api: TestClient, trained: list[str]
) -> None:
    request = held(api, trained[0], external_id="T 1")
    body = {"dataset": DATASET, "record_ids": [trained[0]], "external_id": "T 1"}
    decide(api, request, "refuse", **TAXES)
    again = api.post(PATH, json=body | {"hold": True}).json()
    assert (again["id"], again["state"]) == (request["id"], "refused")
    assert api.post(PATH, json=body).status_code == 422  # one that is not held is another body
    key = {"Idempotency-Key": "one call"}
    path = f"{PATH}/{request['id']}/reopen"
    assert api.post(path, headers=key).json()["state"] == "received"
    decide(api, request, "refuse", **TAXES)
    replayed = api.post(path, headers=key)
    assert replayed.headers["Idempotent-Replayed"] == "true"
    assert shown(api, request)["state"] == "refused"


def test_decisions_need_the_scope_that_cancelling_needs(
    api: TestClient, caller_of: CallerOf, trained: list[str]
) -> None:
    request = held(api, trained[0])
    reader = caller_of(Scope.FORGET_READ, Scope.DATA_WRITE, Scope.MODELS_WRITE)
    for how, body in (
        *(("accept", {}), ("reopen", {}), ("refuse", TAXES), ("extend", {"reason": "x"})),
    ):
        answer = decide(reader, request, how, **body)
        assert answer.status_code == 403, how
        assert "forget:write" in answer.text
    assert shown(api, request)["state"] == "received"


def test_a_decision_that_was_forged_does_not_stay_unseen(
    workshop: Workshop, api: TestClient, trained: list[str], app_database: Engine
) -> None:
    workshop.forged = True
    accepted = api.post(PATH, json={"dataset": DATASET, "record_ids": [trained[0]]}).json()
    request = held(api, trained[1])
    change = "UPDATE forget_requests SET {} WHERE id = :id"
    for named, forged in (
        (accepted, "state = 'refused', ground = 'other', forget_epoch = NULL"),
        (accepted, "forget_epoch = forget_epoch + 1"),
        (request, "state = 'cancelled', forget_epoch = 1"),
        (request, "state = 'certified', forget_epoch = 1"),
        (request, "state = 'accepted'"),
        (request, "state = 'refused'"),
    ):
        refused = pytest.raises(DBAPIError, match=r"settled|check constraint")
        with refused, workshop.transaction() as session:
            session.execute(text(change.format(forged)), {"id": named["id"]})
    assert faults(workshop.services) == []
    decide(api, request, "refuse", **TAXES)
    with app_database.begin() as connection, unguarded(connection):
        forged = "explanation = 'something else'"
        connection.execute(text(change.format(forged)), {"id": request["id"]})
    assert [fault.where for fault in faults(workshop.services)] == [
        f"forget_requests {request['id']}"
    ]


def days_between(first: str, second: str) -> float:
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds() / 86400


@pytest.mark.parametrize("decision", ["accept", "refuse", "reopen", "extend", "retry"])
def test_an_id_of_any_characters_is_not_found(api: TestClient, decision: str) -> None:
    body = {"ground": "17(3)(b)"} if decision == "refuse" else {"reason": "It takes longer."}
    assert api.post(f"/v1/forget-requests/é\U0007dd1b/{decision}", json=body).status_code == 404

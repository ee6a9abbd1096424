"""The description of the API: what holds for all operations stands at each of them."""

import re
from dataclasses import fields
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.cli.application import create_app
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.ledger.models.recipes import ADAMW_RATE
from app.services import Services

Json = dict[str, Any]
VERBS = {
    "unpublish",
    *(
        "accept",
        "acknowledge",
        "alter",
        "archive",
        "cancel",
        "change",
        "check",
        "create",
        "define",
        "delete",
        "destroy",
        "download",
        "get",
    ),
    *(
        "import",
        "list",
        "preview",
        "prove",
        "publish",
        "push",
        "refill",
        "refuse",
        "reopen",
        "extend",
        "quote",
        "redeliver",
        "redirect",
        "register",
        "report",
        "retrain",
        "retry",
        "revoke",
    ),
    *("rotate", "stream", "upload"),
}


@pytest.fixture
def document(services: Services) -> Json:
    return create_app(services).openapi()


def _operations(document: Json) -> dict[str, Json]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def _answers(document: Json, operation: Json) -> dict[str, Json]:
    named = document["components"]["responses"]
    return {
        status: named[answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
        for status, answer in operation["responses"].items()
    }


def test_every_answer_names_its_call_and_counted_ones_what_is_left(document: Json) -> None:
    for name, operation in _operations(document).items():
        for status, answer in _answers(document, operation).items():
            assert "X-Request-ID" in answer["headers"], (name, status)
            if "security" in operation:
                assert {"RateLimit", "RateLimit-Policy"} <= set(answer["headers"]), (name, status)


def test_every_operation_has_a_name_of_its_own_that_begins_with_a_verb(document: Json) -> None:
    names = [operation["operationId"] for operation in _operations(document).values()]
    assert len(names) == len(set(names))
    for name in names:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", name), name
        assert name.partition("_")[0] in VERBS, name


def test_pages_are_named_after_what_they_hold(document: Json) -> None:
    schemas = document["components"]["schemas"]
    pages = {name: schema for name, schema in schemas.items() if name.endswith("Page")}
    assert {"RunPage", "ModelPage", "AuditEntryPage"} <= set(pages)
    assert not [name for name in schemas if "_" in name]
    for name, schema in pages.items():
        item = schema["properties"]["items"]["items"]["$ref"].rpartition("/")[2]
        assert name.removesuffix("Page") == item.removesuffix("Answer")
        assert schema["title"] == name


@pytest.mark.parametrize(
    ("body", "source"),
    [
        ("PolicyBody", Policy()),
        ("RecipeBody", TrainingRecipe(optimizer="adamw", learning_rate=ADAMW_RATE)),
    ],
)
def test_a_body_describes_each_field_of_what_it_becomes(
    document: Json, body: str, source: Policy | TrainingRecipe
) -> None:
    members = document["components"]["schemas"][body]["properties"]
    assert set(members) == {field.name for field in fields(source)}
    for name, member in members.items():
        assert len(member["description"]) > 10, name
        assert member.get("default", None) == _plain(source.to_json()[name]), name


def _plain(value: object) -> object:
    return None if value == {} else value


def test_whoever_needs_a_key_may_be_refused_for_it(document: Json) -> None:
    guarded = {name: op for name, op in _operations(document).items() if "security" in op}
    assert {"GET /metrics", "GET /v1/audit", "POST /opendsr/v2/requests"} <= set(guarded)
    for name, operation in guarded.items():
        answers = _answers(document, operation)
        assert {"401", "403", "429", "503"} <= set(answers), name
        assert "WWW-Authenticate" in answers["401"]["headers"]
        assert "Retry-After" in answers["429"]["headers"]


def test_the_operators_pages_are_not_described(document: Json) -> None:
    known = ("/v1/", "/opendsr/v2/", "/.well-known/", "/livez", "/readyz", "/metrics")
    assert all(path.startswith(known) for path in document["paths"])


def test_opendsr_has_errors_of_its_own_beside_problems(document: Json) -> None:
    create = _answers(document, _operations(document)["POST /opendsr/v2/requests"])
    kinds = {status: set(answer.get("content", ())) for status, answer in create.items()}
    own, problem = "application/json", "application/problem+json"
    assert (kinds["400"], kinds["404"]) == ({own}, {own})
    assert kinds["409"] == {own, problem}  # a call may be in flight under its Idempotency-Key
    assert kinds["401"] == kinds["422"] == kinds["429"] == {problem}
    for status in ("201", "400", "409"):
        assert "X-OpenDSR-Signature" in create[status]["headers"]


def test_no_answer_is_announced_that_is_never_sent(document: Json) -> None:
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert (
        "422"
        not in _operations(document)["DELETE /opendsr/v2/requests/{subject_request_id}"][
            "responses"
        ]
    )


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000])
def test_a_body_that_cannot_be_read_is_opendsrs_own_fault(api: TestClient, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = api.post("/opendsr/v2/requests", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)
    assert answer.headers["X-OpenDSR-Signature"]

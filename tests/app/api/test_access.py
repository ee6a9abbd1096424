"""Who may call what."""

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from app.ledger.api_keys import Scope
from app.main import create_app
from app.services import Services
from tests.app.api.conftest import CallerOf
from tests.support.dumps import everything_in_postgres

OPEN = {
    "/livez",
    "/readyz",
    "/.well-known/expunge-keys.json",
    "/opendsr/v2/discovery",
    "/opendsr/v2/certificate.pem",
}
SCOPES = {
    "POST /v1/datasets": Scope.DATA_WRITE,
    "GET /v1/datasets": Scope.MODELS_READ,
    "GET /v1/datasets/{name}": Scope.MODELS_READ,
    "PUT /v1/datasets/{name}/records": Scope.DATA_WRITE,
    "POST /v1/backbones": Scope.MODELS_WRITE,
    "GET /v1/backbones": Scope.MODELS_READ,
    "GET /v1/backbones/{name}": Scope.MODELS_READ,
    "PUT /v1/backbones/{name}/weights": Scope.MODELS_WRITE,
    "POST /v1/models": Scope.MODELS_WRITE,
    "GET /v1/models": Scope.MODELS_READ,
    "GET /v1/models/{name}": Scope.MODELS_READ,
    "PUT /v1/models/{name}/weights": Scope.MODELS_WRITE,
    "GET /v1/models/{name}/certified": Scope.MODELS_READ,
    "GET /v1/models/{name}/certified/weights": Scope.MODELS_READ,
    "GET /v1/models/{name}/versions": Scope.MODELS_READ,
    "GET /v1/models/{name}/versions/{number}/weights": Scope.MODELS_READ,
    "GET /v1/models/{name}/versions/{number}/certificate": Scope.MODELS_READ,
    "GET /v1/log/checkpoint": Scope.LOG_READ,
    "GET /v1/log/entries": Scope.LOG_READ,
    "GET /v1/log/entries/{index}": Scope.LOG_READ,
    "GET /v1/log/proofs/inclusion": Scope.LOG_READ,
    "GET /v1/log/proofs/consistency": Scope.LOG_READ,
    "GET /v1/models/{name}/versions/{number}/card": Scope.MODELS_READ,
    "GET /v1/models/{name}/versions/{number}/model.sig": Scope.MODELS_READ,
    "POST /v1/forget-requests": Scope.FORGET_WRITE,
    "GET /v1/forget-requests": Scope.FORGET_READ,
    "GET /v1/forget-requests/{request_id}": Scope.FORGET_READ,
    "DELETE /v1/forget-requests/{request_id}": Scope.FORGET_WRITE,
    "POST /v1/forget-requests/{request_id}/retry": Scope.FORGET_WRITE,
    "GET /v1/forget-requests/{request_id}/certificates": Scope.FORGET_READ,
    "GET /v1/certificates/{certificate_id}": Scope.MODELS_READ,
    "GET /v1/runs/{run_id}": Scope.MODELS_READ,
    "POST /v1/plans": Scope.MODELS_READ,
    "POST /v1/runs/{run_id}/retry": Scope.MODELS_WRITE,
    "GET /v1/callbacks": Scope.FORGET_READ,
    "POST /v1/callbacks/{callback_id}/redeliver": Scope.FORGET_WRITE,
    "GET /v1/callback-secret": Scope.FORGET_WRITE,
    "POST /v1/callback-secret/rotate": Scope.FORGET_WRITE,
    "POST /opendsr/v2/requests": Scope.FORGET_WRITE,
    "GET /opendsr/v2/requests/{subject_request_id}": Scope.FORGET_READ,
    "DELETE /opendsr/v2/requests/{subject_request_id}": Scope.FORGET_WRITE,
    "POST /v1/api-keys": Scope.ADMIN,
    "GET /v1/api-keys": Scope.ADMIN,
    "DELETE /v1/api-keys/{key_id}": Scope.ADMIN,
}
BODIES = {
    "POST /v1/datasets": {"name": "d", "features": {"shape": [1]}, "classes": 2},
    "POST /v1/backbones": {
        "name": "b",
        "architecture": {"name": "logistic"},
        "input": {"shape": [1]},
        "classes": 2,
        "source": "a paper",
    },
    "POST /v1/models": {"name": "m", "dataset": "d", "architecture": {"name": "logistic"}},
    "POST /v1/forget-requests": {"dataset": "d", "record_ids": ["r"]},
    "POST /v1/api-keys": {"name": "k", "scopes": ["log:read"]},
    "POST /v1/plans": {"shape": {"retained": 10, "batch_size": 2, "recipe_epochs": 1.0}},
}


@pytest.fixture
def app(services: Services) -> FastAPI:
    return create_app(services)


def _operations(app: FastAPI) -> set[str]:
    return {
        f"{method.upper()} {path}"
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if path not in OPEN and not path.startswith("/.well-known/")
    }


def _call(client: TestClient, operation: str) -> tuple[int, dict, dict]:
    method, path = operation.split(" ")
    filled = re.sub(r"\{(\w+)\}", lambda m: "1" if m[1] == "number" else "nothing", path)
    answer = client.request(method, filled, json=BODIES.get(operation))
    return answer.status_code, dict(answer.headers), answer.json() if answer.content else {}


def test_every_operation_has_its_scope_in_the_table(app: FastAPI) -> None:
    assert _operations(app) == set(SCOPES)
    hidden = {r.path for r in app.routes if isinstance(r, APIRoute) and not r.include_in_schema}
    assert hidden == set()


def test_without_a_key_nothing_is_answered(caller_of: CallerOf) -> None:
    for client in (caller_of(), TestClient(caller_of().app, headers={"Authorization": "Bearer x"})):
        for operation in SCOPES:
            status, headers, problem = _call(client, operation)
            assert (operation, status) == (operation, 401)
            assert headers["www-authenticate"].startswith("Bearer")
            assert headers["content-type"] == "application/problem+json"
            assert problem["type"] == "urn:expunge:problem:unauthenticated"


def test_a_key_without_the_scope_is_refused_by_name(caller_of: CallerOf) -> None:
    for missing in Scope:
        others = caller_of(*(s for s in Scope if s not in (missing, Scope.ADMIN)))
        for operation in (o for o, scope in SCOPES.items() if scope is missing):
            status, headers, problem = _call(others, operation)
            assert (operation, status) == (operation, 403)
            assert problem["scope"] == missing
            assert f'scope="{missing}"' in headers["www-authenticate"]


def test_a_key_with_just_the_scope_is_let_in(caller_of: CallerOf) -> None:
    for scope in set(SCOPES.values()):
        client = caller_of(scope)
        for operation in (o for o, needed in SCOPES.items() if needed is scope):
            status, _, _ = _call(client, operation)
            assert status not in (401, 403), operation


def test_a_revoked_key_is_refused_at_once(caller_of: CallerOf) -> None:
    admin = caller_of(Scope.ADMIN)
    made = admin.post("/v1/api-keys", json={"name": "k", "scopes": ["models:read"]}).json()
    client = TestClient(admin.app, headers={"Authorization": f"Bearer {made['secret']}"})
    assert client.get("/v1/models").status_code == 200

    assert admin.delete(f"/v1/api-keys/{made['id']}").status_code == 204

    assert client.get("/v1/models").status_code == 401


def test_secrets_are_shown_once_and_stored_hashed(caller_of: CallerOf, services: Services) -> None:
    admin = caller_of(Scope.ADMIN)
    made = admin.post("/v1/api-keys", json={"name": "k", "scopes": ["models:read"]}).json()

    assert made["secret"] not in admin.get("/v1/api-keys").text
    assert made["secret"] not in everything_in_postgres(services.database.engine)


@pytest.mark.parametrize("path", sorted(OPEN))
def test_what_needs_no_key(caller_of: CallerOf, path: str) -> None:
    assert caller_of().get(path).status_code == 200


def test_the_published_keys_are_those_that_sign(caller_of: CallerOf, services: Services) -> None:
    anybody = caller_of()
    keys = {k["purpose"]: k for k in anybody.get("/.well-known/expunge-keys.json").json()["keys"]}

    assert keys["certificates"]["pem"] == services.signer.public_key_pem
    assert keys["model signatures"]["pem"] == services.model_signer.public_key_pem
    for key in keys.values():
        file = anybody.get(f"/.well-known/expunge-keys/{key['key_id']}.pem")
        assert (file.status_code, file.text) == (200, key["pem"])
    assert anybody.get("/.well-known/expunge-keys/nobody.pem").status_code == 404
    assert Path(services.settings.data_dir / "keys").stat().st_mode & 0o077 == 0

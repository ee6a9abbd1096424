"""Who may call what: every operation of the OpenAPI document, by the scope that it declares."""

import importlib
import pkgutil
import re
import socket
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

import app.api as api_package
from app.api.protocol.access import GuardedRoute, Needs
from app.cli.application import create_app
from app.domain.states import Scope
from app.evidence.certificates.signing import public_pem
from app.services import Services
from tests.integration.app.api.conftest import CallerOf
from tests.support.dumps import everything_in_postgres
from tests.support.patience import PATIENCE_S
from tests.support.representatives import mostly_nightly
from tests.support.serving import serve
from tests.support.workshop import DATASET, Workshop

PUBLIC = {
    "GET /livez",
    "GET /readyz",
    "GET /.well-known/expunge-keys.json",
    "GET /.well-known/expunge-keys/{key_id}.pem",
    "GET /opendsr/v2/discovery",
    "GET /opendsr/v2/certificate.pem",
}
"""All that needs no key. Nothing else may be added without a reason."""

READS_WITH_A_BODY = {"POST /v1/plans", "POST /v1/dossiers"}

Operations = dict[str, dict]


@pytest.fixture
def app(services: Services) -> FastAPI:
    return create_app(services)


def _operations(app: FastAPI) -> Operations:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
    }


def _scope_of(operation: dict) -> Scope | None:
    """Return the one scope that an operation declares."""
    security = operation.get("security", [])
    if len(security) != 1 or set(security[0]) != {"bearer"} or len(security[0]["bearer"]) != 1:
        return None
    return Scope(security[0]["bearer"][0])


def _guarded(app: FastAPI) -> dict[str, Scope]:
    scopes = {name: _scope_of(operation) for name, operation in _operations(app).items()}
    return {name: scope for name, scope in scopes.items() if scope is not None}


def _undeclared(app: FastAPI) -> set[str]:
    return set(_operations(app)) - set(_guarded(app)) - PUBLIC


def _call(client: TestClient, operation: str, **options: object):
    """Call an operation as far as a caller gets who knows nothing but its path."""
    method, path = operation.split(" ")
    filled = re.sub(r"\{(\w+)\}", lambda m: "1" if m[1] in ("number", "index") else "none", path)
    return client.request(method, filled, follow_redirects=False, **options)


def test_every_operation_declares_its_scope_or_is_public(app: FastAPI) -> None:
    assert _undeclared(app) == set()
    assert set(_operations(app)) >= PUBLIC
    assert len(_guarded(app)) > 35


def test_a_new_operation_without_a_scope_would_be_noticed(app: FastAPI) -> None:
    app.add_api_route("/v1/new", lambda: None, methods=["GET"])
    app.openapi_schema = None
    assert _undeclared(app) == {"GET /v1/new"}


def test_what_the_document_hides_is_guarded_like_the_rest(app: FastAPI) -> None:
    public = {operation.split(" ")[1] for operation in PUBLIC}
    public.add("/metrics")  # guarded by a setting; the document shows the scope, and is checked
    for module in pkgutil.walk_packages(api_package.__path__, "app.api."):
        if module.ispkg:  # its routers are those of its modules
            continue
        router = getattr(importlib.import_module(module.name), "router", None)
        for route in [] if router is None else router.routes:
            assert isinstance(route, APIRoute), route
            if route.path in public:
                continue
            asked = [d.call for d in route.dependant.dependencies if isinstance(d.call, Needs)]
            assert len(asked) == 1, route.path
            assert isinstance(route, GuardedRoute), route.path


def test_what_changes_something_needs_more_than_a_reading_scope(app: FastAPI) -> None:
    for operation, scope in _guarded(app).items():
        if not operation.startswith("GET ") and operation not in READS_WITH_A_BODY:
            assert not scope.endswith(":read"), operation


@pytest.mark.parametrize(
    "credentials",
    mostly_nightly(
        [None, "Bearer x", "Bearer xpg_x", "Basic eA==", "Bearer"], None, "Bearer xpg_x"
    ),
)
def test_without_a_key_nothing_is_answered_and_no_body_read(
    app: FastAPI, credentials: str | None
) -> None:
    client = TestClient(app, headers={} if credentials is None else {"Authorization": credentials})
    for operation in _guarded(app):
        for options in ({}, {"content": b"{", "headers": {"Content-Type": "application/json"}}):
            answer = _call(client, operation, **options)
            assert (operation, answer.status_code) == (operation, 401)
            assert answer.headers["www-authenticate"].startswith('Bearer realm="expunge"')
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["type"] == "urn:expunge:problem:unauthenticated"
        if operation.startswith("GET "):
            head = _call(client, operation.replace("GET", "HEAD"))
            assert (operation, head.status_code) in {(operation, 401), (operation, 405)}


@pytest.mark.parametrize("headers", [[], ["Idempotency-Key: k"]], ids=["once", "repeatable"])
@pytest.mark.parametrize(
    ("path", "length"), [("/v1/models", 60_000), ("/v1/forget-requests", 15_000_000)]
)
def test_who_lacks_a_scope_is_told_so_before_a_byte_of_the_body_comes(
    app: FastAPI, caller_of: CallerOf, path: str, length: int, headers: list[str]
) -> None:
    head = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        f"Authorization: {caller_of(Scope.LOG_READ).headers['authorization']}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        *headers,
    ]
    with (
        serve(app) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), PATIENCE_S) as caller,
    ):
        caller.sendall(("\r\n".join(head) + "\r\n\r\n").encode())
        assert caller.recv(65536).startswith(b"HTTP/1.1 403")


def test_a_key_with_all_other_scopes_is_refused_by_name(app: FastAPI, caller_of: CallerOf) -> None:
    for missing in Scope:
        others = caller_of(*(s for s in Scope if s not in (missing, Scope.ADMIN, Scope.AUDIT)))
        for operation in (o for o, scope in _guarded(app).items() if scope is missing):
            for options in ({}, {"content": b"{", "headers": {"Content-Type": "application/json"}}):
                answer = _call(others, operation, **options)
                assert (operation, answer.status_code) == (operation, 403)
                assert answer.json()["type"] == "urn:expunge:problem:missing-scope"
                assert answer.json()["scope"] == missing
                assert f'scope="{missing}"' in answer.headers["www-authenticate"]


AUDITOR_ANYWHERE = {
    "POST /v1/datasets",
    "GET /v1/datasets/{name}",
    "GET /v1/models/{name}",
    "GET /v1/models/{name}/versions/{number}/certificate",
    "POST /v1/models/{name}/audits",
}
AUDITOR_AT_HOME = {
    "PUT /v1/datasets/{name}/records",
    "POST /v1/datasets/{name}/archive",
    "POST /v1/models",
    "GET /v1/models/{name}/certified",
    "GET /v1/models/{name}/versions/{number}/weights",
    "POST /v1/models/{name}/archive",
    "GET /v1/runs/{run_id}",
    "POST /v1/forget-requests",
    "GET /v1/forget-requests/{request_id}",
    "GET /v1/forget-requests/{request_id}/certificates",
}
"""With datasets that the key has defined, their models and their requests."""


def test_an_auditors_key_opens_what_an_audit_needs_and_nothing_else(
    app: FastAPI, caller_of: CallerOf, workshop: Workshop
) -> None:
    workshop.train()
    request = workshop.forget(workshop.split()[0][0])
    run = caller_of(Scope.ADMIN).get("/v1/models/model").json()["latest_run"]["id"]
    named = {"name": "model", "request_id": request, "run_id": run}
    auditor = caller_of(Scope.AUDIT)
    opened = {each for each in _guarded(app) if _call(auditor, each).status_code != 403}
    assert opened == AUDITOR_ANYWHERE | AUDITOR_AT_HOME
    bodies = {
        "POST /v1/models": {"name": "copy", "dataset": DATASET, "architecture": {"name": "mlp"}}
        | {"task": {"name": "classification", "target": {"column": "label", "classes": [0, 1]}}},
        "POST /v1/forget-requests": {"dataset": DATASET, "record_ids": ["a"]},
    }
    answered = {}
    for operation, scope in _guarded(app).items():
        method, path = operation.split(" ")
        if path.startswith("/v1/datasets/{name}"):
            path = path.replace("{name}", DATASET)
        path = re.sub(r"\{(\w+)\}", lambda m: named.get(m[1], "1"), path)
        options = {"json": bodies[operation]} if operation in bodies else {}
        answer = auditor.request(method, path, follow_redirects=False, **options)
        answered[operation] = answer.status_code
        if answer.status_code == 403:
            assert answer.json()["scope"] == scope, operation
    let_in = {operation for operation, status in answered.items() if status != 403}
    assert let_in == AUDITOR_ANYWHERE
    everywhere = {"record_ids": [], "subject_ids": ["a"]}
    assert auditor.post("/v1/forget-requests", json=everywhere).status_code == 403
    public = {"name": "p", "columns": {"x": "float32"}, "record_id": "id", "public": True}
    assert auditor.post("/v1/datasets", json=public).status_code == 403
    assert auditor.post("/v1/datasets", json=public | {"public": False}).status_code == 201
    assert _call(caller_of(Scope.AUDIT), "POST /v1/datasets/p/archive").status_code == 403
    assert _call(auditor, "PUT /v1/datasets/p/records?replace=true").status_code == 403
    assert _call(auditor, "PUT /v1/datasets/p/records").status_code == 422
    assert _call(auditor, "POST /v1/datasets/p/archive").status_code == 200


@pytest.mark.parametrize("admin", [False, True])
def test_a_key_with_the_scope_is_let_in(app: FastAPI, caller_of: CallerOf, *, admin: bool) -> None:
    for scope in set(_guarded(app).values()):
        client = caller_of(Scope.ADMIN if admin else scope)
        for operation in (o for o, needed in _guarded(app).items() if needed is scope):
            answer = _call(client, operation)
            assert answer.status_code not in (401, 403), operation
            assert answer.status_code < 500, operation


def test_every_refusal_is_in_the_document(app: FastAPI) -> None:
    for operation, described in _operations(app).items():
        if operation not in PUBLIC:
            assert {"401", "403", "429"} <= set(described["responses"]), operation


def test_the_document_says_how_to_authenticate(app: FastAPI) -> None:
    schemes = app.openapi()["components"]["securitySchemes"]
    assert {name: scheme["scheme"] for name, scheme in schemes.items()} == {"bearer": "bearer"}


OPEN = sorted(PUBLIC)


def test_what_needs_no_key(app: FastAPI, subtests: pytest.Subtests) -> None:
    for operation in OPEN:
        with subtests.test(operation=operation):
            assert _call(TestClient(app), operation).status_code in (200, 404)


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


def test_the_published_keys_are_those_that_sign(caller_of: CallerOf, services: Services) -> None:
    anybody = caller_of()
    keys = {k["purpose"]: k for k in anybody.get("/.well-known/expunge-keys.json").json()["keys"]}

    assert keys["certificates"]["pem"] == public_pem(services.signer.public_key)
    assert keys["model signatures"]["pem"] == services.model_signer.public_key_pem
    for key in keys.values():
        file = anybody.get(f"/.well-known/expunge-keys/{key['key_id']}.pem")
        assert (file.status_code, file.text) == (200, key["pem"])
    assert anybody.get("/.well-known/expunge-keys/nobody.pem").status_code == 404
    assert Path(services.settings.data_dir / "keys").stat().st_mode & 0o077 == 0

"""Secrets in no answer and in no log, whatever is called and however it goes wrong."""

import io
import logging
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from app.access import api_keys
from app.cli.application import create_app
from app.domain.states import Scope
from app.evidence.certificates.tables import CertificateRow
from app.runtime.locations import model_signing_key_file, pseudonym_key_file, signing_key_file
from app.runtime.logs import DiscreetFormatter
from app.services import Services
from tests.support.issuer import AUDIENCE, running_issuer
from tests.support.salts import salt_of
from tests.support.workshop import DATASET, Workshop

SUBJECT = "anna-the-subject"


@dataclass
class World:
    """A service with something of everything, and what nobody may see of it."""

    app: FastAPI
    admin_key: str
    token: str
    secrets: dict[str, str]
    salt: str
    names: dict[str, str]


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """All that is logged at all, as the service's processes write it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(DiscreetFormatter("%(asctime)s %(name)s %(message)s"))
    handler.addFilter(lambda record: "//testserver" not in record.getMessage())  # the caller's own
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def world(services: Services, workshop: Workshop, logged: io.StringIO) -> Iterator[World]:
    with running_issuer() as issuer:
        settings = services.settings.model_copy(
            update={
                "oidc_issuer": issuer.url,
                "oidc_audience": AUDIENCE,
                "requests_per_minute": 1_000_000,
            }
        )
        services = replace(services, settings=settings)
        with services.database.transaction() as session:
            made = api_keys.create_key(session, name="all", scopes=[Scope.ADMIN])
        workshop.train()
        request_id = workshop.forget(workshop.split()[0][0])
        workshop.dispatch()
        run_id = workshop.active_run()
        workshop.work()
        assert run_id is not None
        salt = salt_of(services, request_id)
        with services.database.transaction() as session:
            certificate = session.scalars(select(CertificateRow.id)).first()
        assert certificate is not None
        token = issuer.token(sub=SUBJECT, scope="admin")
        keys = services.settings.data_dir
        assert keys.is_dir()
        pseudonyms = pseudonym_key_file(settings).read_bytes()
        yield World(
            app=create_app(services),
            admin_key=made[1],
            token=token,
            salt=b64encode(salt).decode(),
            names={
                "name": "model",
                "number": "1",
                "index": "0",
                "request_id": request_id,
                "run_id": run_id,
                "certificate_id": certificate,
                "key_id": made[0].id,
            },
            secrets={
                "API key": made[1],
                "hash of the key": api_keys.digest_of(made[1]).hex(),
                "token": token,
                "claims": token.split(".")[1],
                "subject": SUBJECT,
                "issuer": issuer.url,
                "pseudonym key": pseudonyms.hex(),
                "pseudonym key, base64": b64encode(pseudonyms).decode(),
                "signing key": signing_key_file(settings).read_text().splitlines()[1],
                "model signing key": model_signing_key_file(settings).read_text().splitlines()[1],
                "salt, hex": salt.hex(),
            },
        )


def _path(world: World, path: str) -> str:
    names = dict(world.names)
    if path.startswith("/v1/datasets"):
        names["name"] = DATASET
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "none"), path)


def _operations(app: FastAPI) -> list[tuple[str, str, str | None]]:
    """Return (method, path, scope), reading before writing and deleting last."""
    found = [
        (method, path, (operation.get("security") or [{"bearer": [None]}])[0]["bearer"][0])
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    return sorted(found, key=lambda each: ["get", "put", "post", "patch", "delete"].index(each[0]))


def _answers(world: World) -> Iterator[tuple[str, str | None, str]]:
    """Call everything in every way; yield (operation, its scope, all that came back)."""
    body = {"name": world.admin_key, "secret": world.token, "dataset": [world.admin_key]}
    wrong = world.admin_key[:-1] + ("A" if world.admin_key[-1] != "A" else "B")
    client = TestClient(world.app, raise_server_exceptions=False)
    for credentials in (wrong, world.token[:-4] + "AAAA", world.token, world.admin_key):
        headers = {"Authorization": f"Bearer {credentials}"}
        for method, path, scope in _operations(world.app):
            if method == "delete" and "key" in path:
                continue  # the key is needed until the end
            if method == "get":
                ways = [{}, {"params": {"cursor": world.token, "limit": world.admin_key}}]
            else:
                ways = [{"json": body}, {"content": world.admin_key.encode()}]
            for way in ways:
                answer = client.request(method, _path(world, path), headers=headers, **way)
                came = f"{answer.status_code} {dict(answer.headers)} {answer.text}"
                yield f"{method} {path}", scope, came


@pytest.mark.slow  # it calls everything in every way
def test_secrets_are_in_no_answer_and_no_log(world: World, logged: io.StringIO) -> None:
    seen_salt = False
    statuses: set[str] = set()
    for operation, scope, came in _answers(world):
        statuses.add(came[:3])
        for what, secret in world.secrets.items():
            assert secret not in came, (operation, what)
        if world.salt in came:
            seen_salt = True
            assert scope in (Scope.FORGET_READ, Scope.FORGET_WRITE), operation
    assert seen_salt
    assert {"200", "401", "404", "422"} <= statuses

    lines = logged.getvalue()
    for what, secret in world.secrets.items():
        if what != "issuer":
            assert secret not in lines, what
    assert world.salt not in lines


@pytest.mark.nightly
def test_secrets_are_in_no_answer_and_no_log_when_things_break(
    world: World, services: Services, logged: io.StringIO
) -> None:
    def away(*_: object) -> None:
        raise OperationalError(f"SELECT '{world.admin_key}'", {}, Exception(world.admin_key))

    def broken(*_: object) -> None:
        raise RuntimeError(world.admin_key + world.token)

    for fault, status in ((away, "503"), (broken, "500")):
        event.listen(services.database.engine, "before_cursor_execute", fault)
        try:
            statuses = set()
            for operation, _, came in _answers(world):
                statuses.add(came[:3])
                for what, secret in world.secrets.items():
                    assert secret not in came, (operation, what)
        finally:
            event.remove(services.database.engine, "before_cursor_execute", fault)
        assert status in statuses
    lines = logged.getvalue()
    for what, secret in world.secrets.items():
        if what != "issuer":
            assert secret not in lines, what


@pytest.mark.nightly
def test_a_planted_secret_would_be_noticed(world: World, logged: io.StringIO) -> None:
    @world.app.get("/v1/leak", openapi_extra={"security": [{"bearer": ["log:read"]}]})
    def leak() -> str:
        logging.getLogger("expunge.api").debug("key %s", world.admin_key)
        return world.salt + world.admin_key

    world.app.openapi_schema = None
    leaks = [came for operation, _, came in _answers(world) if operation == "get /v1/leak"]
    assert all(world.salt in came and world.admin_key in came for came in leaks)
    assert world.admin_key in logged.getvalue()

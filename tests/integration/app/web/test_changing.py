"""What the pages change beside requests: models and keys; and data and the audit trail."""

import csv
import io
import json
import re

import pytest
from fastapi.testclient import TestClient

from app.access import api_keys, audit_trail
from app.domain.states import Scope
from app.evidence.log import actor
from app.ledger.new_requests import NewForgetRequest
from app.registry.datasets.imports import service as imports
from app.services import Services
from tests.integration.app.web.conftest import VisitorOf, token_in
from tests.integration.app.web.test_pages import ACTIONS, SCOPES
from tests.support import scenes
from tests.support.workshop import DATASET, Workshop


def test_a_key_is_made_used_and_revoked(
    operator: TestClient, visitor_of: VisitorOf, api: TestClient
) -> None:
    page = operator.get("/settings").text
    token = token_in(page)
    made = operator.post(
        "/settings/keys",
        data={"token": token, "name": "night", "forget:read": "on", "expires_on": "2999-12-31"},
    )
    assert made.status_code == 201
    (secret,) = re.findall(r'value="(xpg_[\w-]+)"', made.text)
    assert secret not in operator.get("/settings").text
    headers = {"Authorization": f"Bearer {secret}"}
    assert api.get("/v1/forget-requests", headers=headers).status_code == 200
    assert api.get("/v1/models", headers=headers).status_code == 403

    (action,) = re.findall(
        r'action="(/settings/keys/key_\w+/revoke)"(?:(?!</form>).)*Revoke night',
        operator.get("/settings").text,
        re.S,
    )
    operator.post(action, data={"token": token})
    assert api.get("/v1/forget-requests", headers=headers).status_code == 401
    assert action not in operator.get("/settings").text

    for wrong in (
        {"name": "a b", "admin": "on"},
        {"name": "x"},
        {"name": "x", "admin": "on", "expires_on": "tomorrow"},
        {"name": "x", "admin": "on", "expires_on": "2001-01-01"},
    ):
        assert operator.post("/settings/keys", data={"token": token, **wrong}).status_code == 422


def test_what_a_form_does_is_done_in_the_name_of_its_sender(
    operator: TestClient, visitor_of: VisitorOf, services: Services
) -> None:
    keys = visitor_of(Scope.ADMIN, name="keeper")
    for visitor, made in ((keys, "one"), (operator, "two"), (keys, "three")):
        form = {"token": token_in(visitor.get("/settings").text), "name": made, "admin": "on"}
        assert visitor.post("/settings/keys", data=form).status_code == 201
    with services.database.transaction() as session:
        entries = audit_trail.newest_entries(
            session, caller=None, kind="key.created", before=None, limit=3
        )
    assert [entry.name for entry in entries] == ["keeper", "desk", "keeper"]


def test_a_model_is_retrained_and_archived(operator: TestClient, workshop: Workshop) -> None:
    workshop.train()
    page = operator.get("/models/model").text
    token = token_in(page)
    assert "Version 1 is served no more, and its weights are shredded" in page
    retrained = operator.post("/models/model/retrain", data={"token": token})
    assert retrained.headers["location"] == f"/runs/{workshop.active_run()}"
    run = retrained.headers["location"]
    assert operator.post("/models/model/retrain", data={"token": token}).status_code == 409
    operator.post(f"{run}/cancel", data={"token": token})
    assert ">cancelled</span>" in operator.get(run).text
    assert f"{run}/cancel" not in operator.get(run).text

    operator.post("/models/model/archive", data={"token": token})
    page = operator.get("/models/model").text
    assert "nothing: model &#39;model&#39; was archived on" in page
    assert "/models/model/archive" not in page


def test_a_dataset_shows_its_schema_counts_and_imports(
    operator: TestClient, visitor_of: VisitorOf, workshop: Workshop
) -> None:
    workshop.forget("record-1")
    with workshop.transaction() as session:
        prefixes = ["s3://exports/"]
        imports.request(session, dataset=DATASET, url="s3://exports/x.parquet", prefixes=prefixes)
    page = operator.get(f"/data/{DATASET}").text
    assert re.findall(r"<dt>([^<]*)</dt><dd>(\d+)</dd>", page)[:3] == [
        ("Records", "39"),
        ("Forgotten, not yet erased", "1"),
        ("Erased", "0"),
    ]
    assert "float32, 2" in page
    assert re.search(r'data-label="Records">40<', page)
    assert "Imports, newest first" in page
    assert re.findall(r'action="([^"]+)"', page) == ["/logout", f"/data/{DATASET}/destroy"]
    reader = visitor_of(Scope.MODELS_READ).get(f"/data/{DATASET}").text
    assert "destroy" not in reader
    assert "imports" not in reader.lower()
    assert operator.get("/data/x").status_code == 404
    assert f"/data/{DATASET}" in operator.get("/data").text


def test_a_dataset_is_destroyed_with_its_models(
    operator: TestClient, visitor_of: VisitorOf, workshop: Workshop
) -> None:
    workshop.train()
    path = f"/data/{DATASET}"
    assert 'With it go: 1 models: <a href="/models/model">model</a>' in operator.get(path).text
    for scope in (Scope.MODELS_WRITE, Scope.DATA_WRITE):
        other = visitor_of(scope, Scope.MODELS_READ)
        form = {"token": token_in(other.get(path).text)}
        assert other.post(f"{path}/destroy", data=form).status_code == 403
    token = token_in(operator.get(path).text)
    assert operator.post(f"{path}/destroy", data={"token": token}).headers["location"] == path
    workshop.services.clean_up()
    assert re.search(r"Nothing of it is left: .* Entry \d+ of the log", operator.get(path).text)
    unknown = operator.post(f"{path}/destroy", data={"token": token, "backbones": "x"})
    assert unknown.status_code == 404


def test_the_audit_trail_is_filtered_and_exported(
    operator: TestClient, visitor_of: VisitorOf, workshop: Workshop
) -> None:
    visitor_of(Scope.FORGET_READ, name="=1+1")
    workshop.define()
    made = operator.get("/settings/audit?kind=key.created").text
    assert "model.defined" not in made
    assert "No entry like this" in operator.get("/settings/audit?caller=nobody").text

    answer = operator.get("/settings/audit/export?form=jsonl")
    entries = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.headers["content-disposition"].endswith('"audit-trail.jsonl"')
    assert [entry["index"] for entry in entries] == list(range(len(entries)))[::-1]
    rows = list(csv.DictReader(io.StringIO(operator.get("/settings/audit/export?form=csv").text)))
    assert [int(row["index"]) for row in rows] == [entry["index"] for entry in entries]
    assert json.loads(rows[0]["facts"]) == entries[0]["facts"]
    some = operator.get("/settings/audit/export?form=jsonl&kind=model.defined").text.splitlines()
    assert len(some) == 1
    assert operator.get("/settings/audit/export?form=xml").status_code == 422


def test_no_cell_of_the_export_is_a_formula(operator: TestClient, workshop: Workshop) -> None:
    with workshop.transaction() as session:
        row, _ = api_keys.create_key(session, name="=HYPERLINK(1)", scopes=[Scope.ADMIN])
        asked = NewForgetRequest(DATASET, record_ids=["record-1"])
    with actor.acting_as(row.id), workshop.transaction() as session:
        workshop.services.acceptance.submit(session, asked, api_key_id=row.id)
    text = operator.get("/settings/audit/export").text
    assert "'=HYPERLINK(1)" in text
    assert not [cell for line in csv.reader(io.StringIO(text)) for cell in line if cell[:1] == "="]


@pytest.mark.slow  # every page for every scope
def test_no_page_has_a_button_that_its_key_may_not_press(
    visitor_of: VisitorOf, workshop: Workshop, subtests: pytest.Subtests
) -> None:
    held = scenes.failing(workshop)
    with workshop.transaction() as session:
        failed = scenes.oldest_request(session)
    fresh = workshop.forget("record-39")
    names = {
        "request_id": (failed, fresh), "run_id": (held.run_id,),
        "name": (scenes.MODELS[0], DATASET),
        "number": ("1",), "certificate_id": ("x",), "key_id": ("x",), "kind": ("model", "dataset"),
    }  # fmt: skip
    paths = {"/"}
    for path in SCOPES:
        found = re.findall(r"\{(\w+)\}", path)
        for i in range(2):
            filled = {n: names[n][min(i, len(names[n]) - 1)] for n in found}
            paths.add(path.format(**filled))
    for scopes in ([Scope.FORGET_READ, Scope.MODELS_READ], *([scope] for scope in Scope)):
        with subtests.test(scopes=scopes):
            _press_none_that_is_not_allowed(visitor_of(*scopes), scopes, paths)


def _press_none_that_is_not_allowed(
    visitor: TestClient, scopes: list[Scope], paths: set[str]
) -> None:
    needed = {
        re.compile(re.sub(r"\{\w+\}", r"[^/]+", path) + "$"): scope
        for path, scope in ACTIONS.items()
    }
    pressed = 0
    for path in sorted(paths):
        answer = visitor.get(path)
        if answer.status_code != 200 or "text/html" not in answer.headers["content-type"]:
            continue
        posts = re.findall(r'<form[^>]*method="post"[^>]*action="([^"]+)"', answer.text)
        buttons = re.findall(r'formaction="([^"]+)"', answer.text)
        links = re.findall(r'<a class="button[^"]*" href="([^"?]+)', answer.text)
        for action in (*posts, *(b for b in buttons if "export" not in b)):
            (scope,) = {s for pattern, s in needed.items() if pattern.match(action)}
            allowed = scope is None or scope in scopes or Scope.ADMIN in scopes
            assert allowed, (path, action, scope)
            pressed += 1
        for link in links:
            assert visitor.get(link).status_code != 403, (path, link)
    assert pressed >= 2  # whoever is logged in may log out

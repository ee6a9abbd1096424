"""What the page changes beside requests: models, datasets, keys, callbacks; trail and figures."""

import csv
import io
import json
import re
from html import unescape

import pytest
from fastapi.testclient import TestClient

from app.access import api_keys, audit_trail
from app.domain.scopes import Scope
from app.evidence.log import actor
from app.ledger.new_requests import NewForgetRequest
from app.services import Services
from tests.integration.app.web.conftest import VisitorOf, token_in
from tests.integration.app.web.test_pages import ACTIONS, SCOPES
from tests.support import scenes
from tests.support.workshop import DATASET, Workshop


def _fields(page: str, action: str) -> dict[str, str]:
    """Return what the form with this action would send, as it stands."""
    (form,) = re.findall(rf'<form[^>]* action="{re.escape(action)}".*?</form>', page, re.S)
    fields: dict[str, str] = {}
    for tag in re.findall(r"<input[^>]*>", form):
        name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
        if name and ('type="checkbox"' not in tag or " checked" in tag):
            fields[name[1]] = unescape(value[1]) if value else "on"
    for name, text in re.findall(r'<textarea[^>]*name="(\w+)"[^>]*>(.*?)</textarea>', form, re.S):
        fields[name] = unescape(text)
    for name, options in re.findall(r'<select[^>]*name="(\w+)"[^>]*>(.*?)</select>', form, re.S):
        chosen = re.search(r'<option value="([^"]*)" selected', options)
        first = re.search(r'<option(?: value="([^"]*)")?[^>]*>([^<]*)', options)
        fields[name] = chosen[1] if chosen else first[1] or first[2] if first else ""
    return fields


def test_a_key_is_made_used_and_revoked(
    operator: TestClient, visitor_of: VisitorOf, api: TestClient
) -> None:
    page = operator.get("/keys").text
    token = token_in(page)
    made = operator.post(
        "/keys",
        data={"token": token, "name": "night", "forget:read": "on", "expires_on": "2999-12-31"},
    )
    assert made.status_code == 201
    (secret,) = re.findall(r'value="(xpg_[\w-]+)"', made.text)
    assert secret not in operator.get("/keys").text
    headers = {"Authorization": f"Bearer {secret}"}
    assert api.get("/v1/forget-requests", headers=headers).status_code == 200
    assert api.get("/v1/models", headers=headers).status_code == 403

    (action,) = re.findall(
        r'action="(/keys/key_\w+/revoke)"(?:(?!</form>).)*Revoke night',
        operator.get("/keys").text,
        re.S,
    )
    operator.post(action, data={"token": token})
    assert api.get("/v1/forget-requests", headers=headers).status_code == 401
    assert action not in operator.get("/keys").text

    for wrong in (
        {"name": "a b", "admin": "on"},
        {"name": "x"},
        {"name": "x", "admin": "on", "expires_on": "tomorrow"},
        {"name": "x", "admin": "on", "expires_on": "2001-01-01"},
    ):
        assert operator.post("/keys", data={"token": token, **wrong}).status_code == 422


def test_what_a_form_does_is_done_in_the_name_of_its_sender(
    operator: TestClient, visitor_of: VisitorOf, services: Services
) -> None:
    keys = visitor_of(Scope.ADMIN, name="keeper")
    for visitor, made in ((keys, "one"), (operator, "two"), (keys, "three")):
        form = {"token": token_in(visitor.get("/keys").text), "name": made, "admin": "on"}
        assert visitor.post("/keys", data=form).status_code == 201
    with services.database.transaction() as session:
        entries = audit_trail.newest_entries(
            session, caller=None, kind="key.created", before=None, limit=3
        )
    assert [entry.name for entry in entries] == ["keeper", "desk", "keeper"]


def test_a_model_is_quoted_made_and_has_its_policy_changed(
    operator: TestClient, workshop: Workshop
) -> None:
    fields = _fields(operator.get("/new-model").text, "/new-model/quote") | {
        "name": "fresh",
        "dataset": DATASET,
        "architecture": '{"name": "logistic"}',
        "recipe": '{"epochs": 4, "batch_size": 4}',
        "mechanism": "gradient_clipping",
    }
    quote = operator.post("/new-model/quote", data=fields)
    assert quote.status_code == 200, quote.text
    assert "would use <strong>gradient clipping</strong>" in quote.text
    assert operator.get("/models/fresh").status_code == 404
    again = _fields(quote.text, "/new-model/quote")
    assert {name: again[name] for name in fields} == fields

    made = operator.post("/new-model", data=again)
    assert made.headers["location"] == "/models/fresh"
    workshop.work("fresh")

    path = "/models/fresh/policy"
    fields = _fields(operator.get(path).text, f"{path}/quote") | {
        "epsilon": "0.5",
        "budget_epochs": "7",
    }
    quote = operator.post(f"{path}/quote", data=fields)
    assert "0.5" in quote.text
    assert f'formaction="{path}"' in quote.text
    assert "ε 1," in operator.get("/models/fresh").text
    assert operator.post(path, data=fields).status_code == 303
    page = operator.get("/models/fresh").text
    assert "ε 0.5," in page
    assert "<dt>budget epochs</dt><dd>7.0</dd>" in page

    for wrong, said in (
        ({"epsilon": "x"}, "epsilon: a number is needed"),
        ({"parameters": "["}, "parameters: this is not JSON"),
        ({"parameters": "[]"}, "parameters: a JSON object is needed"),
        ({"retrain_after_records": "1.5"}, "a whole number is needed"),
        ({"serving": "never"}, "serving"),
        ({"epsilon": "-1"}, "epsilon"),
        ({"mechanism": "magic"}, "mechanism must be"),
    ):
        for target in (path, f"{path}/quote"):
            answer = operator.post(target, data={**fields, **wrong})
            assert (answer.status_code, said in unescape(answer.text)) == (422, True), wrong
    refused = operator.post(f"{path}/quote", data={**fields, "mechanism": "ridge_statistics"})
    assert "formaction" not in refused.text


def test_a_model_is_retrained_and_archived_and_then_its_dataset(
    operator: TestClient, workshop: Workshop
) -> None:
    workshop.define()
    workshop.work()
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
    assert f"/datasets/{DATASET}/archive" not in operator.get(f"/datasets/{DATASET}").text
    assert operator.post(f"/datasets/{DATASET}/archive", data={"token": token}).status_code == 409

    operator.post("/models/model/archive", data={"token": token})
    page = operator.get("/models/model").text
    assert "nothing: model &#39;model&#39; was archived on" in page
    assert "/models/model/archive" not in page
    operator.post(f"/datasets/{DATASET}/archive", data={"token": token})
    page = operator.get(f"/datasets/{DATASET}").text
    assert "<dt>Archived</dt>" in page
    assert "/archive" not in page


def test_a_dataset_shows_its_schema_counts_and_imports(
    operator: TestClient, visitor_of: VisitorOf, workshop: Workshop
) -> None:
    workshop.forget("record-1")
    page = operator.get(f"/datasets/{DATASET}").text
    assert re.findall(r"<dt>([^<]*)</dt><dd>(\d+)</dd>", page)[:3] == [
        ("Records", "39"),
        ("Forgotten, not yet erased", "1"),
        ("Erased", "0"),
    ]
    assert "float32, 2" in page
    assert "<svg" in page
    assert "at most 40" in page
    token = token_in(page)
    refused = operator.post(
        f"/datasets/{DATASET}/imports", data={"token": token, "url": "s3://other/x.parquet"}
    )
    assert refused.status_code == 422
    reader = visitor_of(Scope.MODELS_READ).get(f"/datasets/{DATASET}").text
    assert "imports" not in reader.lower()
    assert operator.get("/datasets/x").status_code == 404
    assert f"/datasets/{DATASET}" in operator.get("/datasets").text


def test_a_callback_is_sent_again(
    operator: TestClient, visitor_of: VisitorOf, workshop: Workshop, services: Services
) -> None:
    assert "No callback yet" in operator.get("/callbacks").text
    with workshop.transaction() as session:
        asked = NewForgetRequest(
            DATASET, record_ids=["record-1"], status_callback_urls=["https://desk.example/x"]
        )
        services.acceptance.submit(session, asked, api_key_id=workshop.key_id)
    page = operator.get("/callbacks").text
    assert "forget_request." in page
    assert "desk.example" not in page
    (path, *_) = re.findall(r'action="(/callbacks/[^/]+/redeliver)"', page)
    assert operator.post(path, data={"token": token_in(page)}).status_code == 303
    assert "callback.redelivered" in operator.get("/audit").text
    assert "/redeliver" not in visitor_of(Scope.FORGET_READ).get("/callbacks").text
    assert "No callback like this" in operator.get("/callbacks?state=dead").text


def test_the_audit_trail_is_filtered_and_exported(
    operator: TestClient, visitor_of: VisitorOf, workshop: Workshop
) -> None:
    visitor_of(Scope.FORGET_READ, name="=1+1")
    workshop.define()
    made = operator.get("/audit?kind=key.created").text
    assert "model.defined" not in made
    assert "No entry like this" in operator.get("/audit?caller=nobody").text

    answer = operator.get("/audit/export?form=jsonl")
    entries = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.headers["content-disposition"].endswith('"audit-trail.jsonl"')
    assert [entry["index"] for entry in entries] == list(range(len(entries)))[::-1]
    rows = list(csv.DictReader(io.StringIO(operator.get("/audit/export?form=csv").text)))
    assert [int(row["index"]) for row in rows] == [entry["index"] for entry in entries]
    assert json.loads(rows[0]["facts"]) == entries[0]["facts"]
    some = operator.get("/audit/export?form=jsonl&kind=model.defined").text.splitlines()
    assert len(some) == 1
    assert operator.get("/audit/export?form=xml").status_code == 422


def test_no_cell_of_the_export_is_a_formula(operator: TestClient, workshop: Workshop) -> None:
    with workshop.transaction() as session:
        row, _ = api_keys.create_key(session, name="=HYPERLINK(1)", scopes=[Scope.ADMIN])
        asked = NewForgetRequest(DATASET, record_ids=["record-1"])
    with actor.acting_as(row.id), workshop.transaction() as session:
        workshop.services.acceptance.submit(session, asked, api_key_id=row.id)
    text = operator.get("/audit/export").text
    assert "'=HYPERLINK(1)" in text
    assert not [cell for line in csv.reader(io.StringIO(text)) for cell in line if cell[:1] == "="]


def test_figures_of_requests_and_runs(
    operator: TestClient, visitor_of: VisitorOf, workshop: Workshop
) -> None:
    empty = operator.get("/figures").text
    assert empty.count("Nothing to draw yet") == 5
    scenes.busy(workshop)

    page = operator.get("/figures").text

    assert page.count('<figure class="curve">') == 5
    received = re.search(r'aria-label="Requests a week\. at most (\d+)', page)
    assert received is not None
    assert int(received[1]) >= 1
    shown = page[page.index("Requests a week</h2>") : page.index("Time to certificate</h2>")]
    assert sum(map(int, re.findall(r'data-label="Requests">(\d+)<', shown))) == 5
    assert re.search(r"<td[^>]*>\d+ %</td>", page)
    reader = visitor_of(Scope.FORGET_READ).get("/figures").text
    assert reader.count("<h2") == 3
    assert "This key may not see" in visitor_of(Scope.LOG_READ).get("/figures").text


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
        "number": ("1",), "certificate_id": ("x",),
    }  # fmt: skip
    paths = {"/", "/figures", "/failures", "/verify"}
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
        for path, scope in (*ACTIONS.items(), ("/logout", None))
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
    assert pressed >= len(paths) // 8

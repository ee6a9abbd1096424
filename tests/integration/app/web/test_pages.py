"""What each page shows, to whom, and with which headers."""

import math
import re
from itertools import pairwise

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from app.delivery.publishing import repository as publishing
from app.domain.plan import Plan
from app.domain.states import Scope, Serving
from app.ledger.models import policies
from app.ledger.tables import RunRow
from app.planning.mechanisms import catalogue
from app.registry import repository as registry
from app.runtime.locations import redis_connection
from app.services import Services
from app.web.installation import PARTS
from app.web.pages import PageRoute
from tests.integration.app.web.conftest import VisitorOf, token_in
from tests.support import scenes
from tests.support.shops import define_shop_model, push_shops
from tests.support.weights import WEIGHTS
from tests.support.workshop import Workshop

_ROUTES = [route for part in PARTS for route in part.router.routes]
SCOPES, ACTIONS = (
    {
        each.path: next(
            (one.call.scope for one in each.dependant.dependencies if hasattr(one.call, "scope")),
            None,
        )
        for each in _ROUTES
        if method in each.methods
    }
    for method in ("GET", "POST")
)


def _filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: "1" if found[1] == "number" else "x", path)


def test_every_place_needs_a_scope_and_only_the_way_in_none() -> None:
    assert all(isinstance(route, PageRoute) for route in _ROUTES)
    free = {path for path, scope in (*SCOPES.items(), *ACTIONS.items()) if scope is None}
    assert free == {"/", "/login", "/logout"}
    places = {path.split("/")[1] for path in {*SCOPES, *ACTIONS} - free}
    assert places == {"requests", "models", "runs", "data", "dossiers", "settings"}
    reading = {Scope.FORGET_READ, Scope.MODELS_READ, Scope.LOG_READ, Scope.ADMIN}
    assert {scope for path, scope in SCOPES.items() if path not in free} == (
        reading | {Scope.FORGET_WRITE}  # the form of a new request
    )
    assert {SCOPES["/requests/new"], ACTIONS["/requests"]} == {Scope.FORGET_WRITE}
    assert {ACTIONS["/models/{name}/archive"], ACTIONS["/runs/{run_id}/retry"]} == {
        Scope.MODELS_WRITE
    }
    assert {SCOPES["/settings"], ACTIONS["/settings/keys"]} == {Scope.ADMIN}


@pytest.mark.parametrize("scope", [s for s in Scope if s is not Scope.ADMIN])
def test_pages_show_what_the_scopes_allow(visitor_of: VisitorOf, scope: Scope) -> None:
    visitor = visitor_of(scope)
    start = visitor.get("/", follow_redirects=True).text
    token = token_in(start)
    for path, needed in SCOPES.items():
        answer = visitor.get(_filled(path))
        is_refused = needed not in (None, scope)
        assert (path, answer.status_code == 403) == (path, is_refused)
        assert (f"lacks the scope {needed}" in answer.text) == is_refused
    for path, needed in ACTIONS.items():
        if needed is not None:
            answer = visitor.post(_filled(path), data={"token": token})
            both = path == "/data/{name}/destroy"
            assert (path, answer.status_code == 403) == (path, needed is not scope or both)
    places = {Scope.FORGET_READ: ["/requests"], Scope.MODELS_READ: ["/models", "/runs", "/data"]}
    found = re.findall(r'<li><a href="([^"]+)"', start.split("<main")[0])
    assert found == places.get(scope, [])
    assert ("This key may see neither" in start) == (not found)


def test_an_operator_has_five_places(operator: TestClient) -> None:
    bar = operator.get("/settings").text.split("<main")[0]
    names = ["Requests", "Models", "Runs", "Data", "Settings"]
    assert re.findall(r"<li><a [^>]*>(\w+)</a>", bar) == names
    assert re.findall(r'aria-current="page">(\w+)<', bar) == ["Settings"]


def test_every_answer_forbids_foreign_scripts_and_frames(operator: TestClient) -> None:
    for path in ("/requests", "/login", "/runs/nothing", "/static/live.js", "/static/expunge.css"):
        headers = operator.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
    assert operator.get("/requests").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect", "/openapi.json"])
def test_no_other_page_shares_the_sessions_origin(operator: TestClient, path: str) -> None:
    assert "html" not in operator.get(path).headers["content-type"]


def test_names_are_text_and_never_markup(
    visitor_of: VisitorOf, workshop: Workshop, services: Services
) -> None:
    markup = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    visitor = visitor_of(Scope.ADMIN, name=markup)
    trained = scenes.released(workshop)
    request = scenes.forget(workshop, trained[0])
    workshop.dispatch()
    held = workshop.begun("face-match")
    workshop.give_up(held, markup)
    with scenes.worker(redis_connection(services.settings), host=markup):
        for path in ("/settings", "/requests", "/requests/all", f"/requests/{request}",
                     "/models/face-match", f"/runs/{held.run_id}", "/runs"):  # fmt: skip
            page = visitor.get(path)
            assert page.status_code == 200
            assert "<img" not in page.text
            assert "<script>" not in page.text
    assert "&lt;script&gt;alert(1)" in page.text


def test_the_pages_of_a_busy_service(
    operator: TestClient, workshop: Workshop, services: Services, subtests: pytest.Subtests
) -> None:
    assert "Week from" not in operator.get("/requests").text + operator.get("/runs").text
    first, _ = scenes.busy(workshop)

    with subtests.test("the numbers of the last weeks stand on their pages"):
        page = operator.get("/requests").text
        assert sum(map(int, re.findall(r'data-label="Requests">(\d+)<', page))) == 5
        assert re.search(r'data-label="Completed in time">\d+ %<', page)
        assert re.search(r'data-label="Median">[\d.]+ h<', page)
        page = operator.get("/runs").text
        assert re.findall(r'data-label="Runs">(\d+)</td><td data-label="ε">([\d.]+)<', page)
        page = operator.get("/models").text
        assert len(re.findall(r'data-label="Cost">[\d.]+ %<', page)) == len(scenes.MODELS)

    with subtests.test("no page needs what the policy forbids"):
        for path in (
            "/requests",
            "/runs",
            f"/runs/{first.run_id}",
            "/models/face-match/versions/2",
        ):
            page = operator.get(path).text
            assert not re.search(r"<script(?![^>]* src=)", page)
            assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", page)
            assert not re.search(r'(src|href)="(?!/|#)', page)

    with subtests.test("a run's page has its numbers without scripts"):
        page = operator.get(f"/runs/{first.run_id}").text

        planned = page[page.index('id="planned"') :]
        rows = re.findall(r'data-step="(\d+)" data-epsilon="([\d.e+-]+)"', planned)
        assert len(rows) > 20
        assert int(rows[-1][0]) == scenes.STEPS
        plan = Plan.from_json(workshop.run(first.run_id).plan)
        guaranteed = catalogue.account(plan.mechanism, plan.parameters).epsilon(delta=plan.delta)
        assert float(rows[-1][1]) == pytest.approx(guaranteed, rel=1e-6)
        assert 0 < guaranteed <= plan.epsilon == 1.0
        epsilons = [float(epsilon) for _, epsilon in rows]
        # Each step rounds: where the steps bring nothing for a while, that shows.
        assert all(later <= sooner * 1.001 for sooner, later in pairwise(epsilons))
        assert re.search(r'aria-label="After \d+ of 60 steps ε is [\d.]+; the target is 1\."', page)
        assert page.count('<circle class="dot"') == 1

    with subtests.test("workers and queue come from Redis"):
        redis = redis_connection(services.settings)
        assert "No worker is registered in Redis" in operator.get("/runs").text

        with (
            scenes.worker(redis, host="gpu-1", run=first.run_id),
            scenes.worker(redis, host="cpu-1"),
        ):
            page = operator.get("/runs").text
            assert "gpu-1, process" in page
            assert page.count(f'href="/runs/{first.run_id}"') == 2
            assert page.count("data-live") == 2
            assert "<dt>Workers</dt><dd>2</dd>" in page
            assert "<dt>Busy</dt><dd>1</dd>" in page
        assert "gpu-1" not in operator.get("/runs").text

    with subtests.test("progress is what the API answers"):
        step, epsilon = scenes.advance(workshop, first, 0.7)
        found = operator.get(f"/runs/{first.run_id}/progress").json()
        assert (found["state"], found["step"], found["epsilon"]) == ("running", step, epsilon)
        assert found in operator.get("/runs/progress").json()["runs"]

    with subtests.test("progress without a guarantee yet is shown as none"):
        with workshop.transaction() as session:
            session.get_one(RunRow, first.run_id).epsilon = math.inf

        assert operator.get(f"/runs/{first.run_id}/progress").json()["epsilon"] is None
        assert operator.get(f"/runs/{first.run_id}").status_code == 200


def test_the_pages_of_a_failing_service(
    operator: TestClient, visitor_of: VisitorOf, workshop: Workshop, subtests: pytest.Subtests
) -> None:
    held = scenes.failing(workshop)
    with workshop.transaction() as session:
        request = scenes.oldest_request(session)

    with subtests.test("what failed is listed, and tried again by those who may"):
        assert operator.get("/requests").text.count("/retry") == 2
        assert operator.get("/runs").text.count("/retry") == 2
        requests, models = visitor_of(Scope.FORGET_READ), visitor_of(Scope.MODELS_READ)
        for page in (requests.get("/requests").text, models.get("/runs").text):
            assert "batch_size" in page
            assert "/retry" not in page

    with subtests.test("a request shows what each model owes it"):
        page = operator.get(f"/requests/{request}").text

        assert all(name in page for name in scenes.MODELS)
        assert f'href="/runs/{held.run_id}"' in page
        assert "use a smaller batch_size" in page
        assert "cert_" in page
        assert "days overdue" in page

    with subtests.test("a failed request is tried again"):
        path = f"/requests/{request}"
        page = operator.get(path).text
        assert f'action="{path}/retry"' in page

        answer = operator.post(f"{path}/retry", data={"token": token_in(page)})

        assert (answer.status_code, answer.headers["location"]) == (303, path)
        assert {line.state for line in workshop.obligations(request)} == {"open", "certified"}
        again = operator.post(f"{path}/retry", data={"token": token_in(page)})
        assert again.status_code == 409
        assert "only a failed one can be retried" in again.text


def test_a_request_is_overdue_until_its_records_are_erased(
    operator: TestClient, workshop: Workshop
) -> None:
    trained = scenes.released(workshop)
    request = scenes.forget(workshop, trained[0], days_ago=40)
    workshop.dispatch()
    for name in scenes.MODELS:
        workshop.work(name)
    assert workshop.request(request).state == "certified"

    assert "<b>1</b> overdue" in operator.get("/requests").text
    assert "10 days overdue" in operator.get(f"/requests/{request}").text

    workshop.services.clean_up()

    assert "<b>0</b> overdue" in operator.get("/requests").text
    page = operator.get(f"/requests/{request}").text
    assert ">completed</span>" in page
    assert "overdue" not in page


def test_overdue_requests_come_first(operator: TestClient, workshop: Workshop) -> None:
    trained = scenes.released(workshop)
    ages = (3, 40, 31, 1)
    requests = {
        days: scenes.forget(workshop, record, days_ago=days)
        for record, days in zip(trained, ages, strict=False)
    }

    page = operator.get("/requests").text

    listed = re.findall(r'href="/requests/(fr_\w+)"', page)
    assert listed == [requests[days] for days in sorted(ages, reverse=True)]
    assert "<b>2</b> overdue" in page
    assert page.count(" overdue</span>") == 2
    assert "10 days overdue" in page


def test_what_was_cancelled_is_due_until_it_is_erased(
    operator: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    request = workshop.forget(workshop.split()[0][0])
    workshop.cancel(request)
    assert f"/requests/{request}" in operator.get("/requests").text

    workshop.unlearn()
    workshop.services.clean_up()

    page = operator.get("/requests").text
    assert "Nothing is owed" in page
    assert f"/requests/{request}" not in page


def test_requests_are_filtered_and_paged(operator: TestClient, workshop: Workshop) -> None:
    workshop.train()
    made = [workshop.forget(record) for record in (workshop.split()[0] * 3)[:60]]
    seen: list[str] = []
    path: str | None = "/requests/all"
    while path is not None:
        page = operator.get(path).text
        seen += re.findall(r'href="/requests/(fr_\w+)"', page)
        found = re.search(r'rel="next" href="([^"]+)"', page)
        path = None if found is None else found[1].replace("&amp;", "&")

    assert seen == made[::-1]
    assert "No request like this" in operator.get("/requests/all?state=failed").text
    assert "No request like this" in operator.get("/requests/all?model=other").text
    assert made[-1] in operator.get("/requests/all?state=accepted&model=model").text
    assert operator.get("/requests/all?cursor=junk").status_code == 422
    assert operator.get("/requests/all?model=%00").status_code == 422


def test_a_failed_run_is_tried_again(operator: TestClient, workshop: Workshop) -> None:
    held = scenes.failing(workshop)
    page = operator.get("/runs").text

    answer = operator.post(f"/runs/{held.run_id}/retry", data={"token": token_in(page)})

    new = workshop.active_run(scenes.MODELS[0])
    assert answer.headers["location"] == f"/runs/{new}"
    assert f"/runs/{held.run_id}/retry" not in operator.get("/runs").text
    assert f"/runs/{held.run_id}/retry" not in operator.get(f"/runs/{held.run_id}").text
    again = operator.post(f"/runs/{held.run_id}/retry", data={"token": token_in(page)})
    assert again.status_code == 409


def test_nothing_is_tried_again_for_a_model_that_is_gone(
    operator: TestClient, workshop: Workshop
) -> None:
    workshop.define("replaced")
    replaced = workshop.lease("replaced")
    workshop.give_up(replaced, "it failed for replaced")
    workshop.define("replaced")
    workshop.define("archived")
    archived = workshop.lease("archived")
    workshop.give_up(archived, "it failed for archived")
    assert "it failed for archived" in operator.get("/runs").text
    workshop.archive("archived")

    assert "it failed for" not in operator.get("/runs").text
    for run in (replaced.run_id, archived.run_id):
        page = operator.get(f"/runs/{run}").text
        assert "it failed for" in page
        assert f"/runs/{run}/retry" not in page
    assert operator.get("/runs/all").text.count("<option>replaced</option>") == 1
    (line,) = re.findall(
        r'<tr>(?:(?!</tr>).)*"/models/archived"(?:(?!</tr>).)*', operator.get("/models").text, re.S
    )
    assert ">archived</span>" in line


def test_a_failed_run_shows_all_that_the_networks_code_said(
    operator: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    request = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held, "the factory raised KeyError\n\nTraceback:\n  <b>width</b>\nKeyError: 3")

    page = operator.get(f"/runs/{held.run_id}").text

    assert "<p>the factory raised KeyError</p>" in page
    (told,) = re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.S)
    assert told == "Traceback:\n  &lt;b&gt;width&lt;/b&gt;\nKeyError: 3"
    # Elsewhere it is one line: a request's reason may be passed on to others.
    for path in ("/runs", f"/requests/{request}"):
        assert "the factory raised KeyError" in operator.get(path).text
        assert "Traceback" not in operator.get(path).text
    assert workshop.request(request).failure_reason == "the factory raised KeyError"


def test_a_version_says_what_its_certificate_says(operator: TestClient, workshop: Workshop) -> None:
    version = workshop.train()

    page = operator.get("/models/model/versions/1").text

    assert version.sha256 in page
    assert "<strong>(ε, δ) = (1, 1e-05).</strong>" in page
    assert "the operator&#39;s word" in page or "enforced by the service" in page
    assert operator.get("/models/model/versions/1/weights").content == WEIGHTS
    bundle = operator.get("/models/model/versions/1/certificate")
    assert bundle.headers["content-disposition"].endswith('"model-v1.certificate.json"')
    assert bundle.json()["envelope"]["signatures"]


def test_a_model_that_serves_nothing_says_why(operator: TestClient, workshop: Workshop) -> None:
    workshop.define(serving=Serving.WITHDRAW_ON_REQUEST)
    assert "has no released version yet" in operator.get("/models/model").text
    workshop.work()
    workshop.forget(workshop.split()[0][0])

    for path in ("/models/model", "/models/model/versions/1"):
        page = operator.get(path).text
        assert "is withdrawn until open forget requests are met" in page
        assert "/models/model/versions/1/weights" not in page


def test_models_and_versions_show_their_task_and_figures(
    operator: TestClient, workshop: Workshop
) -> None:
    push_shops(workshop)
    define_shop_model(workshop, "huber")
    workshop.evaluation = {
        "held_out_records": 15,
        "held_out_loss": 0.02,
        "headline": "mae",
        "metrics": {"r2": 0.87, "mae": 151.23456, "<b>own</b>": 1.0},
    }
    workshop.work()

    page = operator.get("/models/model").text
    assert "<dd>regression: 1 number, Huber&#39;s loss with threshold 1</dd>" in page
    assert '<td data-label="Measured" class="nowrap">mean absolute error 151.2</td>' in page
    page = operator.get("/models/model/versions/1").text
    assert "15 held-out records" in page
    assert "outside of the guarantee" in page
    assert re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page.split("How good it is")[1]) == [
        ("mean absolute error", "151.2"),
        (" b own  b ", "1"),
        ("R²", "0.87"),
    ]


def test_scores_stand_beside_baselines_and_a_bad_one_is_a_red_line(
    operator: TestClient, workshop: Workshop, services: Services
) -> None:
    scored = {"held_out_records": 15, "held_out_loss": 0.5, "headline": "accuracy"}
    scored |= {"higher_is_better": True, "baseline": 0.41}
    workshop.evaluation = scored | {"metrics": {"accuracy": 0.9}}
    workshop.train()
    page = operator.get("/models").text
    assert '<td data-label="Score">accuracy 0.9 (baseline 0.41)</td>' in page
    assert 'data-label="Of each version">–<' in page
    workshop.evaluation = scored | {"metrics": {"accuracy": 0.7}}
    workshop.forget(workshop.split()[0][0])
    workshop.unlearn()

    page = operator.get("/models").text
    assert "accuracy of each version. at most 0.9, 0.7 at v2." in page
    assert "minimum" not in page
    policies.change_policy(services.database, "model", {"minimum_score": 0.8})

    below = "its accuracy of 0.7 on held-out records is below the policy&#39;s minimum_score of 0.8"
    for path in ("/models", "/models/model"):
        page = operator.get(path).text
        assert re.search(rf'<p class="problem" role="status">[^\n]*{below}\.</p>', page), path
        assert re.search(r'<(line|polyline) class="limit"', page), path
    policies.change_policy(services.database, "model", {"minimum_score": 0.6})
    assert "below" not in operator.get("/models").text


def test_a_model_says_how_many_records_more_it_covers(
    operator: TestClient, workshop: Workshop
) -> None:
    policy = {"mechanism": "dp_sgd", "epsilon": 8.0, "parameters": {"capacity": 4}}
    workshop.define("private", **policy)
    assert "Capacity" not in operator.get("/models/private").text
    workshop.work("private")
    assert "4 of 4 records" in operator.get("/models/private").text
    learned = workshop.split("private")[0]
    workshop.forget(learned[0])
    text = operator.get("/models/private").text
    assert "3 of 4 records" in text
    assert '<progress max="4" value="3"' in text
    assert "can be forgotten at once" in text
    workshop.forget(*learned[1:4])
    text = operator.get("/models/private").text
    assert "0 of 4 records" in text
    assert "may need a run" in text
    workshop.train("clipped")
    assert "Capacity" not in operator.get("/models/clipped").text


def test_a_private_version_is_on_no_page(operator: TestClient, workshop: Workshop) -> None:
    workshop.define(first_release="none")
    run = workshop.active_run()
    version = workshop.work()

    for path in ("/runs", "/models", "/models/model", f"/runs/{run}"):
        page = operator.get(path).text
        assert "/versions/1" not in page
        assert version.sha256[:16] not in page
    assert "Nothing was released yet" in operator.get("/models/model").text
    assert operator.get("/models/model/versions/1").status_code == 404
    assert operator.get("/models/model/versions/1/certificate").status_code == 404
    assert operator.get("/models/model/versions/1/weights").status_code == 404


def test_what_is_not_there_is_a_page(operator: TestClient) -> None:
    for path in ("/runs/x", "/requests/x", "/models/x", "/models/x/versions/1"):
        answer = operator.get(path)
        assert answer.status_code == 404
        assert "Not found" in answer.text
    assert operator.get("/models/x/versions/zero").status_code == 422
    assert operator.get("/runs/%00").status_code == 422


def test_without_a_database_the_page_says_so(operator: TestClient, services: Services) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("SELECT 'secret'", {}, Exception("secret"))

    event.listen(services.database.engine, "before_cursor_execute", fail)
    answer = operator.get("/requests")

    assert answer.status_code == 503
    assert "The database cannot be reached" in answer.text
    assert "secret" not in answer.text


def test_a_model_page_shows_where_the_model_may_still_be(
    operator: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    assert "Published at" not in operator.get("/models/model").text
    with workshop.transaction() as session:
        model = registry.model_named(session, "model", lock=True)
        placement = publishing.want(session, model, "shelf").id
    workshop.services.publisher().settle(placement)
    page = operator.get("/models/model").text
    assert "Published at" in page
    assert "does not name this target any more" in page


def test_a_dossier_is_offered_to_a_key_that_may_read_all_of_it(
    visitor_of: VisitorOf, workshop: Workshop
) -> None:
    workshop.train()
    readers = (Scope.LOG_READ, Scope.MODELS_READ, Scope.FORGET_READ)
    for missing in (None, *readers):
        visitor = visitor_of(*(scope for scope in readers if scope is not missing))
        assert visitor.get("/dossiers/model/model").status_code == (403 if missing else 200)
        if missing is not Scope.MODELS_READ:
            assert ("Download the dossier" in visitor.get("/models/model").text) == (not missing)

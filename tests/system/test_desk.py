"""The privacy desk in a real browser: a request's whole way, and what a reader's key may press.

Workers do the runs; what the browser downloads is verified by the command line.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_core_python.sync_playwright import Axe
from fastapi.testclient import TestClient
from playwright.sync_api import Browser, Page, Response, expect
from typer.testing import CliRunner

from app.access import api_keys
from app.cli.application import create_app
from app.cli.main import app as command
from app.domain.states import Scope
from app.runtime.locations import redis_connection
from app.services import Services
from tests.integration.app.conftest import workshop
from tests.integration.app.web.conftest import _no_memory_of_others
from tests.support import browser as browsers
from tests.support import scenes
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.trust import trust_in
from tests.support.workshop import Workshop

__all__ = ["_no_memory_of_others", "workshop"]

pytestmark = pytest.mark.skipif(browsers.CHROMIUM is None, reason=browsers.MISSING)
_FIRST_PAGE_BYTES = 100_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.chromium() as browser:
        yield browser


@pytest.fixture
def address(services: Services) -> Iterator[str]:
    with browsers.served(create_app(services)) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str, admin_key: str) -> Iterator[Page]:
    """A page of an operator who may do everything; nothing may go wrong on it unseen."""
    context = browser.new_context(accept_downloads=True)
    page = context.new_page()
    faults = _faults_of(page)
    browsers.log_in(page, address, admin_key)
    yield page
    context.close()
    assert faults == []


def _faults_of(page: Page) -> list[str]:
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    return faults


def _download(page: Page, click: Callable[[], None], path: Path) -> Path:
    with page.expect_download() as download:
        click()
    download.value.save_as(path)
    return path


def test_a_request_goes_from_a_file_to_a_verified_certificate(
    work: Callable[[], None],  # first: it empties Redis, where sessions are
    page: Page,
    browser: Browser,
    address: str,
    api: TestClient,
    services: Services,
    tmp_path: Path,
) -> None:
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    assert api.put("/v1/datasets/digits/records", content=digits_parquet()).status_code == 200
    for name in ("kept", "given-up"):
        assert api.post("/v1/models", json=model(name)).status_code == 201
    work()

    # A file of ids, previewed and sent.
    page.locator("nav").get_by_role("link", name="Requests", exact=True).click()
    page.get_by_role("link", name="New request").click()
    page.get_by_label("Where", exact=True).select_option("digits")
    people = {"name": "people.txt", "mimeType": "text/plain", "buffer": b"subject-3\nsubject-5\n"}
    page.get_by_label("Or a text file of them").set_input_files(people)  # type: ignore[arg-type]
    expect(page.locator("#ids")).to_have_value("subject-3\nsubject-5\n")
    page.get_by_label("Your ticket").fill("DESK-17")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="digits: 20 records")).to_be_visible()
    for name in ("kept", "given-up"):
        row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name))
        expect(row).to_contain_text("a run unlearns them")
    page.get_by_role("button", name="Send the request").click()
    expect(page.get_by_role("heading", name="The request was accepted")).to_be_visible()
    receipt = _download(
        page,
        page.get_by_role("button", name="Download the receipt of digits").click,
        tmp_path / "receipt.json",
    )

    # It waits for a worker, and says so; then it is certified, and found by its ticket.
    page.locator("nav").get_by_role("link", name="Requests", exact=True).click()
    expect(page.get_by_text("kept: waits until its run is scheduled")).to_be_visible()
    work()
    services.clean_up()
    page.locator("nav").get_by_role("link", name="Requests", exact=True).click()
    page.get_by_label("Ticket, person, record or request").fill("DESK-17")
    page.get_by_role("button", name="Find").click()
    page.locator("th a", has=page.locator("code")).click()
    expect(page.locator("h1 .pill")).to_have_text("completed")

    # The certificate is downloaded, and verified on the command line.
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="kept", exact=True))
    bundle = _download(
        page, row.get_by_role("link", name=re.compile("^cert_")).click, tmp_path / "bundle.json"
    )
    page.get_by_role("link", name="kept", exact=True).click()
    page.get_by_role("link", name="version 2").first.click()
    weights = _download(
        page,
        page.get_by_role("link", name="Download weights").click,
        tmp_path / "kept.safetensors",
    )
    keys = tmp_path / "keys.json"
    keys.write_bytes(trust_in(services))
    options = ("--weights", str(weights), "--trusted", str(keys), "--receipt", str(receipt))
    verified = CliRunner().invoke(command, ["verify", str(bundle), *options])
    assert verified.exit_code == 0, verified.output
    said = re.search(r"(\d+) records are covered, (\d+) never touched", verified.output)
    assert said is not None
    assert int(said[1]) + int(said[2]) == 20

    # One model is trained again, another archived.
    page.goto(f"{address}/models/kept")
    page.get_by_text("Retrain", exact=True).click()
    page.get_by_role("button", name="Retrain kept").click()
    expect(page.locator("h1")).to_contain_text("train run of kept")
    run = page.url
    work()
    page.goto(run)
    expect(page.locator("#news")).to_contain_text("It published version 3")
    page.goto(f"{address}/models/given-up")
    page.get_by_text("Archive", exact=True).click()
    expect(page.get_by_text("Version 2 is served no more")).to_be_visible()
    page.get_by_role("button", name="Archive given-up").click()
    expect(page.locator("dl.facts").first).to_contain_text("was archived")

    # A key is made, used, and revoked.
    page.get_by_role("link", name="Settings", exact=True).click()
    page.get_by_text("New key", exact=True).click()
    page.get_by_label("Name", exact=True).fill("reader")
    for scope in ("forget:read", "models:read"):
        page.get_by_role("checkbox", name=scope).check()
    page.get_by_role("button", name="Create the key").click()
    secret = page.get_by_label("Key", exact=True).input_value()
    context = browser.new_context()
    reader = context.new_page()
    faults = _faults_of(reader)
    browsers.log_in(reader, address, secret)
    for path in ("/", "/requests/all", "/models", "/models/kept", "/runs", "/data/digits", run):
        reader.goto(path if path.startswith("http") else address + path)
        buttons = {button.inner_text() for button in reader.get_by_role("button").all()}
        assert buttons <= {"Log out", "Find", "Show", "Recipe", "Policy"}, (path, buttons)
        assert reader.get_by_role("link", name=re.compile("New|Settings|Audit")).count() == 0
    page.goto(f"{address}/settings")
    own = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="reader"))
    own.get_by_text("Revoke", exact=True).click()
    own.get_by_role("button", name=re.compile("Revoke reader")).click()
    expect(own).to_contain_text("revoked")
    reader.reload()
    assert reader.url == f"{address}/login"
    assert faults == []
    context.close()


def _paths(workshop: Workshop, run: str, request: str) -> tuple[str, ...]:
    name = scenes.MODELS[0]
    return (
        *("/requests", "/requests/all", "/requests/new", f"/requests/{request}"),
        *(f"/requests/{request}/answer", "/models", f"/models/{name}", "/runs", f"/runs/{run}"),
        *("/data", "/data/people", "/settings", "/settings/audit"),
    )


_ILLEGIBLE = """
(() => {
  const texts = [...document.querySelectorAll("figure svg text")];
  const shown = texts.map((text) => [text.textContent, text.getBoundingClientRect()]).filter(
    ([, box]) => box.width > 0
  );
  const beside = (a, b) => a.left >= b.right || b.left >= a.right;
  const above = (a, b) => a.top >= b.bottom || b.top >= a.bottom;
  return shown.filter(([, box], i) =>
    box.height < 11 || box.left < 0 || box.right > innerWidth ||
    shown.some(([, other], j) => i !== j && !beside(box, other) && !above(box, other))
  ).map(([text]) => text);
})()
"""
"""The texts of charts that are too small, outside of the page, or over another."""


@pytest.mark.parametrize(
    ("scheme", "width"), [pytest.param("light", 1120, marks=pytest.mark.nightly), ("dark", 360)]
)
def test_the_desks_pages_are_accessible_and_fit(
    browser: Browser,
    address: str,
    admin_key: str,
    workshop: Workshop,
    scheme: str,
    width: int,
) -> None:
    held, _ = scenes.busy(workshop)
    with workshop.transaction() as session:
        request = scenes.oldest_request(session)
    context = browser.new_context(
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": width, "height": 740},
        reduced_motion="reduce",
    )
    page = context.new_page()
    faults = _faults_of(page)
    browsers.log_in(page, address, admin_key)
    axe = Axe()

    def check(what: str) -> None:
        for part in page.locator("details").all():
            part.evaluate("part => { part.open = true; }")
        found = [
            (violation["id"], [node["html"] for node in violation["nodes"]][:3])
            for violation in axe.run(page)["violations"]
        ]
        assert (what, found) == (what, [])
        assert page.evaluate("document.documentElement.scrollWidth") <= width, what
        assert page.evaluate(_ILLEGIBLE) == [], what

    for path in _paths(workshop, held.run_id, request):
        page.goto(address + path)
        check(path)
    page.goto(f"{address}/requests/new")
    page.get_by_label("Ids (one on each line)").fill("subject-1")
    page.get_by_role("button", name="Preview").click()
    check("the preview")
    page.get_by_role("button", name="Send the request").click()
    check("what was sent")
    assert faults == []
    context.close()


def test_the_first_page_is_light(
    browser: Browser, address: str, admin_key: str, workshop: Workshop, services: Services
) -> None:
    scenes.busy(workshop)
    context = browser.new_context()
    page = context.new_page()
    browsers.log_in(page, address, admin_key)
    answers: list[Response] = []

    def note(answer: Response) -> None:  # the browser takes no method of a list
        answers.append(answer)

    fresh = browser.new_context()
    fresh.add_cookies(context.cookies())  # type: ignore[arg-type]
    first = fresh.new_page()
    first.on("response", note)
    with scenes.worker(redis_connection(services.settings)):
        first.goto(address, wait_until="load")
        sizes = {a.url.removeprefix(address): len(a.body()) for a in answers if a.ok}
    assert "/static/expunge.css" in sizes
    assert sum(sizes.values()) < _FIRST_PAGE_BYTES, sizes
    context.close()
    fresh.close()


def test_the_desk_works_without_scripts(
    browser: Browser, address: str, workshop: Workshop, services: Services
) -> None:
    workshop.define()
    workshop.work()
    with services.database.transaction() as session:
        scopes = [Scope.FORGET_READ, Scope.FORGET_WRITE, Scope.MODELS_READ, Scope.MODELS_WRITE]
        _, key = api_keys.create_key(session, name="desk", scopes=scopes)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()
    page.goto(f"{address}/requests/new")
    page.get_by_label("Ids (one on each line)").fill("subject-1")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Send the request").click()
    page.locator("th a").first.click()
    page.get_by_text("Cancel this request").click()
    page.get_by_role("button", name="Cancel the request").click()
    expect(page.locator("h1 .pill")).to_have_text("cancelled")
    context.close()


def test_a_runs_curve_is_there_after_a_reload_elsewhere(
    page: Page, address: str, workshop: Workshop
) -> None:
    """What was reported while no page was open is shown, from the run itself."""
    first, _ = scenes.busy(workshop)
    scenes.advance(workshop, first, 0.8)
    page.goto(f"{address}/runs/{first.run_id}")
    expect(page.locator("figure circle.dot")).to_have_count(2)
    assert page.evaluate("sessionStorage.length") == 0
    bar = page.get_by_role("progressbar", name="Steps of the present phase")
    assert 0 < float(bar.get_attribute("value") or 0) < float(bar.get_attribute("max") or 0)

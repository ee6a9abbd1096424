"""The privacy desk in a real browser: a request's whole way, live runs, by keyboard and accessible.

Workers do the runs; what the browser downloads is verified by the command line.
"""

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_core_python.sync_playwright import Axe
from fastapi.testclient import TestClient
from playwright.sync_api import Browser, Locator, Page, Request, Response, expect
from typer.testing import CliRunner

from app.access import api_keys
from app.cli.application import create_app
from app.cli.main import app as command
from app.domain.states import Scope
from app.evidence.certificates import dossier
from app.evidence.questions import questions
from app.runtime.locations import redis_connection
from app.services import Services
from tests.integration.app.conftest import workshop
from tests.integration.app.web.conftest import _no_memory_of_others
from tests.support import browser as browsers
from tests.support import scenes
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.logbook import sign
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
        expect(row).to_contain_text("it is made to forget them")
    page.get_by_role("button", name="Send the request").click()
    expect(page.get_by_role("heading", name="The request was accepted")).to_be_visible()
    receipt = _download(
        page,
        page.get_by_role("button", name="Download the receipt of digits").click,
        tmp_path / "receipt.json",
    )

    # It waits for a worker, and says so; then it is certified, and found by its ticket.
    page.locator("nav").get_by_role("link", name="Requests", exact=True).click()
    expect(page.get_by_text("kept: waits for its turn")).to_be_visible()
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


_HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_dossiers_are_downloaded_and_their_page_opens_by_itself(
    page: Page, browser: Browser, address: str, api: TestClient, workshop: Workshop, tmp_path: Path
) -> None:
    """Nothing of it is fetched or run, whatever people wrote."""
    workshop.train()
    learned = workshop.split()[0]
    bot = {"name": "bot", "version": 1, "contact": _HOSTILE, "callback": "https://shop.example/a"}
    made = api.post("/v1/models/model/derivatives", json=bot).json()
    asked = {"dataset": "people", "record_ids": learned[:1], "hold": True}
    request = api.post("/v1/forget-requests", json=asked).json()["id"]
    refusal = {"ground": "other", "explanation": _HOSTILE}
    assert api.post(f"/v1/forget-requests/{request}/refuse", json=refusal).status_code == 200
    workshop.forget(learned[1])
    workshop.unlearn()
    said = {"answer": _HOSTILE}
    answered = api.post(f"/v1/models/model/derivatives/{made['id']}/acknowledge", json=said)
    assert answered.status_code == 200
    sign(workshop.services)
    context = browser.new_context(offline=True)
    alone = context.new_page()
    faults, fetched = _faults_of(alone), list[str]()

    def note(request: Request) -> None:
        fetched.append(request.url)

    alone.on("request", note)
    alone.on("dialog", lambda dialog: faults.append(dialog.message))
    places = {
        f"requests/{request}": f"refused: other {_HOSTILE}",
        "models/model": f"answered 20.* UTC {re.escape(_HOSTILE)}",
        "data/people": "bot, made of model v1",
    }
    for path, expected in places.items():
        page.goto(f"{address}/{path}")
        link = page.get_by_role("link", name="Download the dossier")
        whole = _download(page, link.click, tmp_path / "dossier.zip").read_bytes()
        facts = dossier.verify_dossier(whole, trusted=trust_in(workshop.services))
        assert facts["name"] == path.partition("/")[2]
        opened = tmp_path / f"{facts['kind']}.html"
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            opened.write_bytes(archive.read("answers.html"))
        fetched.clear()
        alone.goto(opened.as_uri())
        assert fetched == [opened.as_uri()]
        assert alone.locator("script, link, img, iframe, object, [onerror]").count() == 0
        pattern = expected if "*" in expected else re.escape(expected)
        assert re.search(pattern, alone.locator("body").inner_text())
        assert alone.locator("tr[id]").count() == len(questions())
    assert faults == []
    context.close()


def _paths(run: str, request: str) -> tuple[str, ...]:
    model = f"/models/{scenes.MODELS[0]}"
    return (
        *("/requests", "/requests/all", "/requests/new", f"/requests/{request}"),
        *(f"/requests/{request}/answer", "/models", model, f"{model}/versions/1"),
        *("/runs", "/runs/all", f"/runs/{run}", "/runs/nothing", "/login"),
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
    ("scene", "scheme", "width"),
    [
        ("busy", "dark", 360),
        ("failing", "light", 1120),
        pytest.param("busy", "light", 1120, marks=pytest.mark.nightly),
        pytest.param("failing", "dark", 360, marks=pytest.mark.nightly),
    ],
)
def test_the_desks_pages_are_accessible_and_fit(
    browser: Browser,
    address: str,
    admin_key: str,
    workshop: Workshop,
    services: Services,
    scene: str,
    scheme: str,
    width: int,
) -> None:
    held = scenes.busy(workshop)[0] if scene == "busy" else scenes.failing(workshop)
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

    with scenes.worker(redis_connection(services.settings), run=held.run_id):
        for path in _paths(held.run_id, request):
            page.goto(address + path)
            check(path)
    page.goto(f"{address}/requests/new")
    page.get_by_label("Ids (one on each line)").fill("subject-1")
    page.get_by_role("button", name="Preview").click()
    check("the preview")
    page.get_by_role("button", name="Send the request").click()
    check("what was sent")
    assert [fault for fault in faults if "404" not in fault] == []  # of a run that is not there
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
    workshop.train()
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


def _by_keyboard(page: Page, name: str, *, most: int = 60) -> None:
    """Go to the control of this name with the tabulator alone, and use it."""
    for _ in range(most):
        page.keyboard.press("Tab")
        control = page.locator(":focus")
        label = control.get_attribute("aria-label") or control.text_content() or ""
        if label.strip() == name:
            assert control.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"the tabulator never came to {name!r}")


def test_somebody_logs_in_looks_and_leaves_without_a_mouse(page: Page, address: str) -> None:
    expect(page.get_by_role("heading", name="Requests", exact=True)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()

    page.goto(address)
    _by_keyboard(page, "Models")
    expect(page.get_by_role("heading", name="Models")).to_be_visible()
    assert page.locator("[aria-current=page]").text_content() == "Models"

    _by_keyboard(page, "Log out")
    expect(page.get_by_label("API key")).to_be_focused()
    page.goto(address)
    assert page.url == f"{address}/login"


def _fact(page: Page, name: str) -> Locator:
    return page.locator("#state dl div").filter(has_text=name).locator("dd")


def test_a_runs_curve_grows(page: Page, address: str, workshop: Workshop) -> None:
    first, _ = scenes.busy(workshop)
    page.goto(f"{address}/runs/{first.run_id}")
    dots = page.locator("figure circle.dot")
    expect(dots).to_have_count(1)
    page.get_by_text("Cancel this run").click()
    epsilons = []
    for count, share in enumerate((0.7, 0.8, 0.9), start=2):
        step, epsilon = scenes.advance(workshop, first, share)
        epsilons.append(epsilon)
        expect(dots).to_have_count(count)
        expect(_fact(page, "Step")).to_have_text(f"{step} / {scenes.STEPS}")
        expect(page.locator("figure .chart")).to_have_attribute(
            "aria-label", re.compile(f"After {step} of {scenes.STEPS} steps ε is {epsilon:.4g}")
        )
    expect(page.locator("#announcement")).to_have_text("75 % of the steps are taken.")
    heights = [float(dot.get_attribute("cy") or "") for dot in dots.all()[1:]]
    by_epsilon = [height for _, height in sorted(zip(epsilons, heights, strict=True), reverse=True)]
    assert by_epsilon == sorted(heights)
    # What somebody opened stays open while there is news.
    expect(page.get_by_role("button", name="Cancel the run")).to_be_visible()

    workshop.publish(first)
    expect(page.locator("#news")).to_contain_text("It published version 3")
    expect(page.locator("h1 .pill")).to_have_text("published")
    expect(page.get_by_role("button", name="Cancel the run")).to_have_count(0)


def test_a_new_attempt_begins_a_new_curve(page: Page, address: str, workshop: Workshop) -> None:
    first, _ = scenes.busy(workshop)
    page.goto(f"{address}/runs/{first.run_id}")
    dots = page.locator("figure circle.dot")
    expect(dots).to_have_count(1)
    scenes.advance(workshop, first, 0.9)
    expect(dots).to_have_count(2)

    workshop.give_up(first, permanent=False)
    again = workshop.begun(scenes.MODELS[1])
    step, _ = scenes.advance(workshop, again, 0.2)

    expect(_fact(page, "Step")).to_have_text(f"{step} / {scenes.STEPS}")
    expect(_fact(page, "Attempt")).to_have_text("2")
    expect(dots).to_have_count(1)


def test_the_runs_move(page: Page, address: str, workshop: Workshop) -> None:
    first, second = scenes.busy(workshop)
    page.goto(f"{address}/runs")
    row = page.locator("tr", has=page.locator(f"a[href='/runs/{first.run_id}']"))
    row.locator("th a").focus()

    step, epsilon = scenes.advance(workshop, first, 0.95)

    expect(row.locator("progress")).to_have_js_property("value", step)
    expect(row).to_contain_text(f"{epsilon:.4g}")
    expect(row.locator("th a")).to_be_focused()

    workshop.publish(second)
    expect(page.locator(f"#active a[href='/runs/{second.run_id}']")).to_have_count(0)


def test_when_the_session_ends_the_page_stops_asking(
    page: Page, address: str, workshop: Workshop, services: Services
) -> None:
    first, _ = scenes.busy(workshop)
    path = f"{address}/runs/{first.run_id}"

    def asks_to_wait(request: Request) -> bool:
        return request.url == f"{path}/progress" and "prefer" in request.headers

    with page.expect_request(asks_to_wait):
        page.goto(path)
    refused = page.expect_response(
        lambda answer: answer.url == f"{path}/progress" and answer.status == 303
    )
    with refused:
        redis_connection(services.settings).flushdb()
        scenes.advance(workshop, first, 0.9)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.wait_for_timeout(3500)

    assert f"{path}/progress" not in asked


def test_a_failed_run_is_tried_again_by_keyboard(
    page: Page, address: str, workshop: Workshop
) -> None:
    held = scenes.failing(workshop)
    page.goto(f"{address}/runs")
    expect(page.get_by_text("use a smaller batch_size").first).to_be_visible()

    _by_keyboard(page, f"Try the run of {scenes.MODELS[0]} again")

    page.wait_for_url(re.compile(r"/runs/run_\w+$"))
    assert held.run_id not in page.url
    assert workshop.active_run(scenes.MODELS[0]) == page.url.rpartition("/")[2]
    expect(page.locator("h1 .pill")).to_have_text("queued")


def test_a_run_is_tried_again_without_scripts(
    browser: Browser, address: str, admin_key: str, workshop: Workshop
) -> None:
    held = scenes.failing(workshop)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    page.get_by_label("API key").fill(admin_key)
    page.get_by_role("button", name="Log in").click()

    page.goto(f"{address}/runs/{held.run_id}")
    page.get_by_text("The plan's curve in numbers").click()
    assert page.locator("#planned tbody tr").count() > 20
    page.get_by_role("button", name="Try this run again").click()
    expect(page.locator("h1")).to_contain_text("queued")
    context.close()


def test_a_person_decides_on_a_held_request(page: Page, workshop: Workshop) -> None:
    workshop.train()
    page.locator("nav").get_by_role("link", name="Requests", exact=True).click()
    page.get_by_role("link", name="New request").click()
    page.get_by_label("Ids (one on each line)").fill("subject-1")
    page.get_by_label("Hold it until a person has decided").check()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Send the request").click()
    expect(page.get_by_role("heading", name="The request was received")).to_be_visible()
    page.locator("nav").get_by_role("link", name="Requests", exact=True).click()
    expect(page.get_by_text("a person has to accept or refuse it")).to_be_visible()
    page.locator("th a", has=page.locator("code")).click()

    page.get_by_text("Refuse this request").click()
    page.get_by_label("Ground", exact=True).select_option("17(3)(e)")
    page.get_by_label("What the person is told").fill("A lawsuit is pending.")
    page.get_by_role("button", name="Refuse the request").click()
    expect(page.locator("h1 .pill")).to_have_text("refused")
    page.get_by_role("link", name="Answer to the person").click()
    expect(page.get_by_text("We have not met your request.")).to_be_visible()
    expect(page.get_by_text("A lawsuit is pending.")).to_be_visible()
    page.get_by_role("link", name="Request", exact=True).click()

    page.get_by_role("button", name="Reopen the request").click()
    expect(page.locator("h1 .pill")).to_have_text("received")
    page.get_by_text("Extend the deadline by two months").click()
    page.get_by_label("Why, as the person is told").fill("The lawsuit has ended.")
    page.get_by_role("button", name="Extend the deadline").click()
    expect(page.get_by_text("The lawsuit has ended.")).to_be_visible()
    expect(page.get_by_text("Extend the deadline by two months")).to_have_count(0)
    page.get_by_role("button", name="Accept: forget the records").click()
    expect(page.locator("h1 .pill")).to_have_text("accepted")

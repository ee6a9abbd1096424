"""The pages in a real browser: by keyboard, live, and checked for accessibility.

One test of a browser is fast enough for every run; the others are slow.
"""

import re
from collections.abc import Iterator

import pytest
from axe_core_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Request, expect

from app.cli.application import create_app
from app.runtime.locations import redis_connection
from app.services import Services
from tests.integration.app.conftest import workshop
from tests.integration.app.web.conftest import _no_memory_of_others
from tests.support import browser as browsers
from tests.support import scenes
from tests.support.workshop import Workshop

__all__ = ["_no_memory_of_others", "workshop"]

pytestmark = pytest.mark.skipif(browsers.CHROMIUM is None, reason=browsers.MISSING)


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
    """A page of somebody who has logged in; nothing may go wrong on it unseen."""
    context = browser.new_context()
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    browsers.log_in(page, address, admin_key)
    yield page
    context.close()
    assert faults == []


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
    again = workshop.lease(scenes.MODELS[1])
    workshop.begin(again)
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


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1120), pytest.param("dark", 360, marks=pytest.mark.nightly)]
)
def test_the_pages_are_accessible_and_fit(
    browser: Browser,
    address: str,
    admin_key: str,
    workshop: Workshop,
    services: Services,
    scheme: str,
    width: int,
) -> None:
    held = scenes.failing(workshop)
    with workshop.transaction() as session:
        request = scenes.oldest_request(session)
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 740}, reduced_motion="reduce"
    )
    page = context.new_page()
    browsers.log_in(page, address, admin_key)
    axe = Axe()
    with scenes.worker(redis_connection(services.settings), run=held.run_id):
        for path in (
            "/requests", "/requests/all", f"/requests/{request}", "/models", "/models/face-match",
            "/models/face-match/versions/1", "/runs", "/runs/all", f"/runs/{held.run_id}",
            "/runs/nothing", "/login",
        ):  # fmt: skip
            page.goto(address + path)
            for part in page.locator("details").all():
                part.evaluate("part => { part.open = true; }")
            found = [
                (violation["id"], [node["html"] for node in violation["nodes"]][:3])
                for violation in axe.run(page)["violations"]
            ]
            assert (path, found) == (path, [])
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    context.close()


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


def test_the_line_under_an_id_leaves_its_underscore_to_be_seen(
    page: Page, address: str, workshop: Workshop
) -> None:
    scenes.busy(workshop)
    page.goto(address)
    link = page.locator("a", has=page.locator("code", has_text=re.compile("^fr_"))).first
    offset = link.evaluate(
        "a => { const s = getComputedStyle(a);"
        " return parseFloat(s.textUnderlineOffset) / parseFloat(s.fontSize); }"
    )
    line = link.evaluate("a => getComputedStyle(a).textDecorationLine")
    # An underscore of the usual monospaced fonts ends a quarter of an em below the line.
    assert (offset >= 0.3, line) == (True, "underline")

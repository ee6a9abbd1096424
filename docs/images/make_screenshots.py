"""Makes the pictures of the operator's page: ``python docs/images/make_screenshots.py [FOLDER]``.

Into a folder go all of them; without one, those that the documentation shows are made anew. The
real service runs on servers of its own in a temporary folder, in the states that the browser's
tests use. It needs Debian's package chromium and the development dependencies.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.access import api_keys
from app.cli.application import create_app
from app.domain.states import Scope
from app.operations import schema
from app.runtime.embedded import EmbeddedServers
from app.runtime.locations import redis_connection
from app.runtime.settings import Settings
from app.services import Services, create_keys, open_services
from tests.support import scenes
from tests.support.browser import chromium, log_in, served
from tests.support.workshop import Workshop

DESK = {"width": 1120, "height": 760}
PHONE = {"width": 360, "height": 740}
HERE = Path(__file__).parent
KEPT = tuple(f"page-busy-{name}-light.png" for name in ("requests", "preview", "model"))


@contextmanager
def service() -> Iterator[Services]:
    """Run a service with an empty ledger."""
    with tempfile.TemporaryDirectory(prefix="expunge-pictures-") as folder:
        settings = Settings(data_dir=Path(folder), environment="test")
        servers = EmbeddedServers(settings.data_dir)
        servers.start()
        try:
            schema.upgrade(servers.migration_url, service_url=servers.database_url)
            create_keys(settings)
            services = open_services(settings)
            yield services
            services.database.dispose()
        finally:
            servers.stop()


def take(browser: Browser, services: Services, folder: Path, scene: str, paths: dict) -> None:
    """Photograph pages in light and dark, on a desk and on a telephone."""
    with services.database.transaction() as session:
        _, key = api_keys.create_key(session, name="privacy-desk", scopes=[Scope.ADMIN])
    with served(create_app(services)) as address:
        for scheme in ("light", "dark"):
            for viewport, ending in ((DESK, ""), (PHONE, "-phone")):
                context = browser.new_context(color_scheme=scheme, viewport=viewport)
                page = context.new_page()
                if scene == "empty":
                    page.goto(address)
                    _picture(page, folder / f"page-login-{scheme}{ending}.png")
                log_in(page, address, key)
                for name, (path, prepare) in paths.items():
                    page.goto(address + path)
                    prepare(page)
                    _picture(page, folder / f"page-{scene}-{name}-{scheme}{ending}.png")
                context.close()


def _picture(page: Page, path: Path) -> None:
    page.wait_for_timeout(300)
    page.screenshot(path=path, full_page=True)
    with Image.open(path) as picture:
        picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(path, optimize=True)


def nothing(_: Page) -> None:
    """Leave a page as it is."""


def _run(workshop: Workshop, held: scenes.Held) -> Callable[[Page], None]:
    """Let a run take its steps while its page is open."""

    def prepare(page: Page) -> None:
        for share in (0.15, 0.2, 0.26, 0.33, 0.4, 0.45, 0.52, 0.57, 0.62):
            step, _ = scenes.advance(workshop, held, share)
            page.locator("#state dd", has_text=f"{step} / ").wait_for()

    return prepare


def preview(page: Page) -> None:
    """See what a request would do."""
    page.get_by_label("Where", exact=True).select_option("people")
    page.get_by_label("Ids (one on each line)").fill("subject-7")
    page.get_by_label("Your ticket").fill("DSR-2041")
    page.get_by_role("button", name="Preview").click()
    page.wait_for_url("**/requests/preview")


def empty(browser: Browser, folder: Path) -> None:
    """Nothing was ever done."""
    with service() as services:
        take(browser, services, folder, "empty", {"requests": ("/requests", nothing)})


def busy(browser: Browser, folder: Path) -> None:
    """Requests are being met."""
    with service() as services, ExitStack() as stack:
        workshop = Workshop(services)
        first, second = scenes.busy(workshop)
        redis = redis_connection(services.settings)
        stack.enter_context(scenes.worker(redis, host="gpu-1", run=first.run_id))
        stack.enter_context(scenes.worker(redis, host="gpu-2", run=second.run_id))
        stack.enter_context(scenes.worker(redis, host="cpu-1"))
        model = f"/models/{scenes.MODELS[0]}"
        pages = {
            "requests": ("/requests", nothing),
            "preview": ("/requests/new", preview),
            "dataset": ("/data/people", nothing),
            "settings": ("/settings", nothing),
            "audit": ("/settings/audit", nothing),
            "run": (f"/runs/{first.run_id}", _run(workshop, first)),
            "runs": ("/runs", nothing),
            "models": ("/models", nothing),
            "model": (model, nothing),
            "version": (f"{model}/versions/2", nothing),
        }
        take(browser, services, folder, "busy", pages)


def failing(browser: Browser, folder: Path) -> None:
    """Requests are overdue, and runs failed."""
    with service() as services:
        workshop = Workshop(services)
        held = scenes.failing(workshop)
        with workshop.transaction() as session:
            request = scenes.oldest_request(session)
        pages = {
            "requests": ("/requests", nothing),
            "runs": ("/runs", nothing),
            "run": (f"/runs/{held.run_id}", nothing),
            "request": (f"/requests/{request}", nothing),
        }
        take(browser, services, folder, "failing", pages)


def make_all(folder: Path) -> None:
    """Make all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for scene in (empty, busy, failing):
            scene(browser, folder)


def main() -> None:
    """Make all pictures, or renew those that are kept."""
    for name in [name for name in os.environ if name.startswith("EXPUNGE_")]:
        del os.environ[name]
    if len(sys.argv) > 1:
        make_all(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_all(Path(folder))
        for name in KEPT:
            shutil.copy(Path(folder) / name, HERE / name)


if __name__ == "__main__":
    main()

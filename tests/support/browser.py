"""A headless Chromium, and the application on a port that it can reach."""

import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.patience import PATIENCE_S

CHROMIUM = shutil.which("chromium")
MISSING = "Chromium is not installed (Debian's package chromium)"
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's Chromium; no other one is looked for."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=1000 * PATIENCE_S)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield browser
        browser.close()


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve an application; yield its address, which browsers take for a secure one."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://localhost:{port}"
    server.should_exit = True
    thread.join()


def log_in(page: Page, address: str, key: str) -> None:
    """Log in as a person would, without a mouse."""
    page.set_default_timeout(1000 * PATIENCE_S)
    page.goto(address)
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.type(key)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"^{address}/(?!login)"))

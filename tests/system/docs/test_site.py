"""The documentation as a site: built without a warning, found by words, calling no other host."""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browser import CHROMIUM, MISSING, chromium
from tests.support.documents import ROOT
from tests.support.patience import PATIENCE_S

PAGES = ROOT / "build" / "pages"


@pytest.fixture(scope="module")
def mkdocs() -> Path:
    """The program of the environment that ``make docs`` uses."""
    subprocess.run(["make", "--silent", ".venv-docs/.installed"], cwd=ROOT, check=True)
    return ROOT / ".venv-docs" / "bin" / "mkdocs"


def _build(mkdocs: Path, source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [mkdocs, "build", "--config-file", source / "mkdocs.yml", "--site-dir", site],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.fixture(scope="module")
def site(mkdocs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, ROOT / "docs/pages.py", PAGES], cwd=ROOT, check=True)
    built = _build(mkdocs, ROOT, folder)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text()
        assert "Content-Security-Policy" in text
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]+)"', text)
        loaded += re.findall(r'<link\b[^>]*rel="(?:stylesheet|preconnect)"[^>]*>', text)
        assert loaded
        assert not [each for each in loaded if "//" in each], page.name


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_a_word_leads_to_its_page_and_nobody_else_is_called(address: str) -> None:
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE_S)
        called: list[str] = []
        faults: list[str] = []
        page.on("request", lambda request: called.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{address}/index.html")
        page.get_by_role("textbox", name="Search").click()
        page.keyboard.type("pseudonym")
        result = page.locator(".md-search-result__link").first
        expect(result).to_be_visible()
        result.click()
        page.wait_for_url(re.compile(r"/(?!index)[\w/-]+\.html"))
        expect(page.locator("article")).to_contain_text("pseudonym")
        page.goto(f"{address}/api.html")
        call = page.frame_locator("iframe").get_by_text("/v1/forget-requests", exact=True)
        expect(call.first).to_be_visible()
        assert not faults
        local = (address, "blob:", "data:")
        assert len(called) > 5
        assert [url for url in called if not url.startswith(local)] == []


@pytest.mark.parametrize(
    ("addition", "said"),
    [
        ("[gone](nowhere.md)", "nowhere.md"),
        ("[gone](settings.md#nowhere)", "#nowhere"),
        (None, "not included in the"),
    ],
)
def test_a_dead_link_or_a_missing_page_is_an_error(
    mkdocs: Path, site: Path, tmp_path: Path, addition: str | None, said: str
) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    shutil.copytree(PAGES, tmp_path / "build" / "pages")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    if addition is None:
        (tmp_path / "docs" / "new.md").write_text("# New\n")
    else:
        with (tmp_path / "docs" / "log.md").open("a") as page:
            page.write(f"\n{addition}\n")
    built = _build(mkdocs, tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert said in built.stderr

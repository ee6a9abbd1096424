"""The API reference is the one that the code describes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.application import create_app
from app.services import Services
from tests.support.api_reference import markdown

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/api.md"


def test_the_page_is_up_to_date(services: Services) -> None:
    assert PAGE.read_text() == markdown(create_app(services).openapi()), "run make api-reference"


@pytest.mark.slow
def test_its_command_writes_it_and_nothing_else() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "tests.support.api_reference"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert made.stdout.decode() == PAGE.read_text()


def test_every_operation_and_object_is_there(services: Services) -> None:
    openapi = create_app(services).openapi()
    page = PAGE.read_text()
    for path, item in openapi["paths"].items():
        for method in item:
            assert f"\n### `{method.upper()} {path}`\n" in page
    headings = {name.lower() for name in re.findall(r"^### (\w+)$", page, re.M)}
    assert headings == {name.lower() for name in openapi["components"]["schemas"]}
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= headings


def test_no_error_is_explained_twice_and_none_is_left_out(services: Services) -> None:
    page = PAGE.read_text()
    rows = re.findall(r"^\| [45]\d\d \| .*problem `.*$", page, re.M)
    assert len(rows) > 8
    assert len(rows) == len(set(rows))
    for path, item in create_app(services).openapi()["paths"].items():
        for method, operation in item.items():
            section = page.partition(f"\n### `{method.upper()} {path}`\n")[2].partition("\n### ")[0]
            told = {*re.findall(r"^\| (\d{3}) \|", section, re.M)}
            told |= {*re.findall(r"\d{3}", "".join(re.findall(r"^Errors: (.*)$", section, re.M)))}
            assert told == set(operation["responses"]), f"{method} {path}"

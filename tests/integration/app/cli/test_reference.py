"""The API reference is the one that the code describes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.main import create_app
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

"""The OpenAPI document is the golden one, so that a review sees what changes for callers."""

import json
from pathlib import Path

from app.cli.application import create_app
from app.services import Services

GOLDEN = Path(__file__).parents[3] / "golden" / "openapi.json"


def test_the_document_is_the_golden_one(services: Services) -> None:
    expected = json.loads(GOLDEN.read_text())
    again = "make docs && cp build/pages/openapi.json tests/golden"
    assert create_app(services).openapi() == expected, again

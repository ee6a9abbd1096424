"""The client's types are what the service says of its answers."""

from pathlib import Path

from app.client import answers
from app.main import create_app
from app.services import Services
from tests.support.client_answers import source


def test_the_types_are_up_to_date(services: Services) -> None:
    schemas = create_app(services).openapi()["components"]["schemas"]
    assert Path(answers.__file__).read_text() == source(schemas), "run make client-answers"

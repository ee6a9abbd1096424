"""Every request has an id, an access line without ids, and a place in the figures."""

import json
import logging
import re
from collections.abc import Callable, Iterator

import pytest
from fastapi.testclient import TestClient

from app.cli.application import create_app
from app.domain.states import Scope
from app.runtime.logs import ACCESS_LOG, JsonFormatter
from app.services import Services
from tests.integration.app.api.conftest import CallerOf

SECRET = "marker-6f1d2c3b4a59"
Lines = Callable[[], list[dict[str, object]]]


class _Collecting(logging.Handler):
    """Formats at once, as a real handler does: in the context of the request."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(JsonFormatter().format(record))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = _Collecting()
    logger = logging.getLogger("expunge")
    before = ACCESS_LOG.level, logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    ACCESS_LOG.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in handler.lines]
    logger.removeHandler(handler)
    ACCESS_LOG.setLevel(before[0])
    logger.setLevel(before[1])


def test_an_id_is_made_and_told(caller_of: CallerOf, lines: Lines) -> None:
    client = caller_of()
    first, second = (client.get("/livez").headers["X-Request-ID"] for _ in range(2))
    assert re.fullmatch("[0-9a-f]{32}", first)
    assert first != second
    assert [line["request_id"] for line in lines()] == [first, second]


def test_a_sane_id_is_taken_over(caller_of: CallerOf, lines: Lines) -> None:
    answer = caller_of().get("/livez", headers={"X-Request-ID": "trace-4711.a_b"})
    assert answer.headers["X-Request-ID"] == "trace-4711.a_b"
    assert lines()[0]["request_id"] == "trace-4711.a_b"


@pytest.mark.parametrize(
    "offered", ["short", "a" * 65, "with a space", 'quote"quote', "-leading-1"]
)
def test_another_id_is_replaced(caller_of: CallerOf, offered: str) -> None:
    answer = caller_of().get("/livez", headers={"X-Request-ID": offered})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["X-Request-ID"])


@pytest.mark.parametrize("status", [401, 403, 404, 422])
def test_refusals_have_an_id_too(caller_of: CallerOf, status: int) -> None:
    client = {401: caller_of(), 403: caller_of(Scope.DATA_WRITE)}.get(status, caller_of("admin"))
    path = "/v1/log/entries/x" if status == 422 else "/v1/forget-requests/x"
    answer = client.get(path)
    assert answer.status_code == status
    assert "X-Request-ID" in answer.headers


def test_the_access_line_names_template_status_time_and_caller(
    caller_of: CallerOf, lines: Lines, services: Services
) -> None:
    client = caller_of(Scope.FORGET_READ)
    client.get(f"/v1/forget-requests/{SECRET}?subject_id={SECRET}")
    client.get(f"/{SECRET}")
    client.request(SECRET.upper(), "/livez")
    known, unknown, odd = lines()
    duration_ms = known.pop("duration_ms")
    assert isinstance(duration_ms, float)
    assert duration_ms > 0
    assert {name: known[name] for name in ("method", "route", "status", "logger")} == {
        "method": "GET",
        "route": "/v1/forget-requests/{request_id}",
        "status": 404,
        "logger": "expunge.access",
    }
    assert str(known["caller"]).startswith("key_")
    assert (unknown["route"], unknown["status"]) == ("unmatched", 404)
    assert "caller" not in unknown
    assert odd["method"] == "other"
    assert SECRET not in json.dumps(lines())


def test_what_breaks_is_a_500_with_an_id_in_every_line_of_it(
    services: Services, lines: Lines
) -> None:
    app = create_app(services)

    @app.get("/broken/{name}")
    def broken(name: str) -> None:
        logging.getLogger("expunge.api").warning("about to break")
        raise ValueError(name)

    client = TestClient(app, raise_server_exceptions=False)
    answer = client.get(f"/broken/{SECRET}")
    assert answer.status_code == 500
    request_id = answer.headers["X-Request-ID"]
    warned, access = lines()
    assert warned["request_id"] == access["request_id"] == request_id
    assert (access["status"], access["route"]) == (500, "/broken/{name}")
    assert SECRET not in json.dumps(lines())


def test_in_text_there_is_no_line_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.runtime import logs

    before = ACCESS_LOG.level
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr(logs.sys, "excepthook", None)
    monkeypatch.setattr(logs.threading, "excepthook", None)
    try:
        logs.configure()
        assert not ACCESS_LOG.isEnabledFor(logging.INFO)
        monkeypatch.setenv("EXPUNGE_LOG_FORMAT", "json")
        logs.configure()
        assert ACCESS_LOG.isEnabledFor(logging.INFO)
    finally:
        ACCESS_LOG.setLevel(before)

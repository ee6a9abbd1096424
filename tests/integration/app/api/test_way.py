"""The modules that see a record's id are those that docs/architecture.md names."""

import re
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from types import FrameType

from fastapi.testclient import TestClient

from app.cli.application import create_app
from app.services import Services
from tests.support.workshop import DATASET, Workshop

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/architecture.md"
RECORD = "record-1"
ROUTE = ("app/api/forget_requests.py", "submit")
ONLY_HASHES = "app/registry/datasets/repository.py"
DEPTH = 6


class Trace:
    """Notes which files of the application are called with a record's id, once the route is."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._is_routed = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(ROOT / "app"):
            return
        name = path.relative_to(ROOT).as_posix()
        self._is_routed = self._is_routed or (name, frame.f_code.co_name) == ROUTE
        if self._is_routed and name not in self.seen and _holds(frame.f_locals, DEPTH):
            self.seen.add(name)


def _holds(value: object, depth: int) -> bool:
    if isinstance(value, str | bytes):
        return RECORD in (value if isinstance(value, str) else value.decode("latin-1"))
    parts: list[object] = []
    if isinstance(value, Mapping):
        parts = [part for pair in list(value.items()) for part in pair]
    elif isinstance(value, Collection):
        parts = list(value)
    elif type(value).__module__.startswith("app."):
        parts = list(getattr(value, "__dict__", {}).values())
    return depth > 0 and any(_holds(part, depth - 1) for part in parts)


def test_the_page_names_the_modules_that_an_id_passes(
    workshop: Workshop, services: Services, admin_key: str
) -> None:
    workshop.train()
    trace = Trace()
    body = {"dataset": DATASET, "record_ids": [RECORD]}
    threading.setprofile(trace)  # of the threads that are yet to start
    try:
        with TestClient(create_app(services)) as api:
            headers = {"Authorization": f"Bearer {admin_key}"}
            answer = api.post("/v1/forget-requests", json=body, headers=headers)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    assert answer.status_code in (201, 202)  # the record may be held out
    named = re.findall(r"\b\d  (app/\S+\.py)", PAGE.read_text())
    assert len(named) == 7
    assert trace.seen == set(named) - {ONLY_HASHES}

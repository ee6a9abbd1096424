"""Finding a request among many: ``python -m benchmarks.desk_search``.

On the embedded PostgreSQL: 100,000 requests with a ticket each, accepted as any other, one for each
of as many people. A user who has logged in searches on the operator's page by a ticket, by a
person's id, by a record's id and by a name that nothing has. Measured is the time from sending the
form over HTTP to the whole page of found requests. The median must be below 50 ms.
"""

import os
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import httpx
import numpy as np
import uvicorn

from app.access import api_keys
from app.cli.application import create_app
from app.domain.schema import FeatureSchema
from app.domain.scopes import Scope
from app.ledger.new_requests import Call, NewForgetRequest
from app.registry.datasets.files import record_table
from app.services import Services
from benchmarks import harness

REQUESTS = 100_000
SEARCHES = 200
LIMIT_MS = 50.0
FOUND = {"ticket": 1, "person": 1, "record": 1, "nothing": 0}
"""How many requests a search by a name of each kind finds."""
_TOGETHER = 500
_PUSHED = 20_000
_DATASET = "people"
_TOKEN = re.compile(r'name="token" value="([^"]+)"')
_LINE = re.compile(r'href="/requests/fr_')


def main() -> None:
    """Measure, print, write; exit with 1 beyond the limit."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    asked = harness.parsed(parser, "desk_search")
    with harness.embedded(EXPUNGE_ENVIRONMENT="test"):
        services = harness.new_services()
        secret = fill(services, asked.requests)
        with served(services) as address, logged_in(address, secret) as page:
            document = {
                "cores": os.cpu_count(),
                "requests": asked.requests,
                "searches": SEARCHES,
                "median_ms": {
                    what: round(median(search(page, what, asked.requests, found)), 1)
                    for what, found in FOUND.items()
                },
                "limit_ms": LIMIT_MS,
            }
        services.database.dispose()
    harness.show(document, asked.results)
    sys.exit(max(document["median_ms"].values()) > LIMIT_MS)


def fill(services: Services, count: int) -> str:
    """Have so many requests, one for each person, each with a ticket; return their sender's key."""
    with services.database.transaction() as session:
        row, secret = api_keys.create_key(session, name="desk", scopes=[Scope.ADMIN])
        key_id = row.id
    features = FeatureSchema(shape=(1,), dtype="float32", offset=0.0, scale=1.0, classes=2)
    parts = (range(at, min(count, at + _PUSHED)) for at in range(0, count, _PUSHED))
    files = (
        record_table(
            record_ids=[f"record-{i}" for i in numbers],
            subject_ids=[f"person-{i}" for i in numbers],
            labels=[0 for _ in numbers],
            features=np.zeros((len(numbers), 1), dtype=np.float32),
        )
        for numbers in parts
    )
    harness.fill(services, _DATASET, features, files)
    for first in range(0, count, _TOGETHER):
        calls = [
            Call(
                NewForgetRequest(_DATASET, subject_ids=[f"person-{i}"], external_id=f"ticket-{i}"),
                key_id,
                key_id,
            )
            for i in range(first, min(count, first + _TOGETHER))
        ]
        with services.database.transaction() as session:
            services.acceptance.submit_all(session, calls)
    return secret


@contextmanager
def served(services: Services) -> Iterator[str]:
    """Serve the application on a free port; yield its address."""
    app = create_app(services)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@contextmanager
def logged_in(address: str, secret: str) -> Iterator[httpx.Client]:
    """Log in as a browser does; yield a client with the session's cookie."""
    with httpx.Client(base_url=address, follow_redirects=True) as page:
        form = {"token": token_on(page, "/login"), "key": secret}
        page.post("/login", data=form).raise_for_status()
        yield page


def token_on(page: httpx.Client, path: str) -> str:
    """Return the token of the last form on a page."""
    return _TOKEN.findall(page.get(path).raise_for_status().text)[-1]


def search(page: httpx.Client, what: str, count: int, found: int) -> list[float]:
    """Return the milliseconds of searches for random names, each of which finds so many."""
    chosen = random.Random(1)
    token = token_on(page, "/requests")
    taken = []
    for _ in range(SEARCHES):
        name = f"{what}-{chosen.randrange(count)}"
        began = time.perf_counter()
        answer = page.post("/requests/found", data={"token": token, "name": name})
        taken.append(1000 * (time.perf_counter() - began))
        lines = len(_LINE.findall(answer.raise_for_status().text))
        if lines != found:
            raise AssertionError(f"{name}: {lines} requests found, not {found}")
    return taken


if __name__ == "__main__":
    main()

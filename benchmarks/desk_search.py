"""Finding a request among many: ``python -m benchmarks.desk_search``.

On the embedded PostgreSQL: 100,000 requests with a ticket each, accepted as any other, one for each
of as many people. Measured is the page's search by a ticket, by a person's id, by a record's id and
by a name that nothing has: from the name to the found requests. The median must be below 50 ms.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from app import schema
from app.access import api_keys
from app.datasets.files import record_table, to_parquet
from app.datasets.service import define_dataset
from app.domain.schema import FeatureSchema
from app.domain.scopes import Scope
from app.embedded import EmbeddedServers
from app.ledger import finding
from app.ledger.new_requests import Call, NewForgetRequest
from app.services import Services, create_keys, open_services
from app.settings import Settings

REQUESTS = 100_000
SEARCHES = 200
LIMIT_MS = 50.0
RESULTS = Path(__file__).parent / "results" / "desk_search.json"
_TOGETHER = 500
_PUSHED = 20_000
_DATASET = "people"


def main() -> None:
    """Measure, print, write; exit with 1 beyond the limit."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--requests", type=int, default=REQUESTS)
    arguments.add_argument("--results", type=Path, default=RESULTS)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="expunge-desk-search-") as folder:
        settings = Settings(data_dir=Path(folder), environment="test")
        servers = EmbeddedServers(settings.data_dir)
        servers.start()
        try:
            schema.upgrade(servers.migration_url, service_url=servers.database_url)
            create_keys(settings)
            services = open_services(settings)
            fill(services, asked.requests)
            document = {
                "cores": os.cpu_count(),
                "requests": asked.requests,
                "searches": SEARCHES,
                "median_ms": {
                    what: round(median(search(services, what, asked.requests, found)), 2)
                    for what, found in (("ticket", 1), ("person", 1), ("record", 1), ("nobody", 0))
                },
                "limit_ms": LIMIT_MS,
            }
            services.database.dispose()
        finally:
            servers.stop()
    text = json.dumps(document, indent=1) + "\n"
    sys.stdout.write(text)
    asked.results.write_text(text)
    sys.exit(max(document["median_ms"].values()) > LIMIT_MS)


def fill(services: Services, count: int) -> None:
    """Have so many requests, one for each person, each with a ticket."""
    with services.database.transaction() as session:
        row, _ = api_keys.create_key(session, name="desk", scopes=[Scope.ADMIN])
        key_id = row.id
        features = FeatureSchema(shape=(1,), dtype="float32", offset=0.0, scale=1.0, classes=2)
        define_dataset(session, name=_DATASET, schema=features)
    for first in range(0, count, _PUSHED):
        numbers = range(first, min(count, first + _PUSHED))
        table = record_table(
            record_ids=[f"record-{i}" for i in numbers],
            subject_ids=[f"person-{i}" for i in numbers],
            labels=[0 for _ in numbers],
            features=np.zeros((len(numbers), 1), dtype=np.float32),
        )
        services.records.push(_DATASET, to_parquet(table))
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


def search(services: Services, what: str, count: int, found: int) -> list[float]:
    """Return the milliseconds of searches for random names, each of which finds so many."""
    chosen = random.Random(1)
    taken = []
    for _ in range(SEARCHES):
        name = f"{what}-{chosen.randrange(count)}"
        began = time.perf_counter()
        with services.database.transaction() as session:
            lines = finding.find(session, services.pseudonyms, name)
        taken.append(1000 * (time.perf_counter() - began))
        if len(lines) != found:
            raise AssertionError(f"{name}: {len(lines)} requests found, not {found}")
    return taken


if __name__ == "__main__":
    main()

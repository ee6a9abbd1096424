"""What earlier requests cost the next one: ``python -m benchmarks.commitment_trees``.

A model of whose records two are forgotten, and a thousand, then a hundred thousand more requests
for them, as the ledger holds them. Measured are the transaction that accepts one more request with
its certificate, and the bundle that proves the request's record under it. Both should take as long
after 100,000 requests as after 1,000: at most 1.5 times.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import create_engine, text

from app.client.download import bundle_bytes
from app.ledger.certificates import bundles, issued
from app.operations import schema
from app.registry.tables import VersionRow
from app.runtime.embedded import EmbeddedServers
from app.runtime.settings import Settings
from app.services import create_keys, open_services
from tests.support.accounts import covered
from tests.support.workshop import Workshop

SIZES = (1_000, 100_000)
TIMES = 100
LIMIT = 1.5
RESULTS = Path(__file__).parent / "results" / "commitment_trees.json"

_REQUESTS = text(
    """
    INSERT INTO forget_requests (id, dataset_id, api_key_id, request_digest, state, forget_epoch,
        record_count, received_at, due_at, completed_at)
    SELECT 'fr_' || lpad(to_hex(n), 32, '0'), d.id, :key, '', 'completed', n, 1, now(), now(), now()
    FROM datasets AS d, generate_series(d.forget_epoch + 1, :last) AS n
    RETURNING id
    """
)
_NAMED = text(
    """
    INSERT INTO forget_request_records (request_id, record_seq, commitment)
    SELECT id, :seq, sha256(id::bytea) FROM forget_requests WHERE id = ANY(:ids)
    """
)


def fill(workshop: Workshop, record: str, count: int) -> float:
    """Have ``count`` requests before the next one, all for one record; return the seconds taken."""
    model = workshop.model()
    (seq,) = workshop.seqs(record)
    with workshop.transaction() as session:
        ids = session.scalars(_REQUESTS, {"key": workshop.key_id, "last": count}).all()
        session.execute(_NAMED, {"seq": seq, "ids": list(ids)})
        session.execute(text("UPDATE datasets SET forget_epoch = :last"), {"last": count})
        head = session.get_one(VersionRow, model.head_version_id)
        started = time.perf_counter()
        covered(session, model, head, ids, through_epoch=head.covers_epoch)
        return time.perf_counter() - started


def measure(workshop: Workshop, record: str) -> dict[str, float]:
    """Time requests, each with its certificate, and their bundles, in milliseconds."""
    certified, bundled, sizes = [], [], []
    for _ in range(TIMES):
        started = time.perf_counter()
        request = workshop.forget(record)
        certified.append(1000 * (time.perf_counter() - started))
        (owed,) = workshop.obligations(request)
        with workshop.transaction() as session:
            certificate = issued.certificate(session, str(owed.certificate_id))
            started = time.perf_counter()
            bundle = bundles.bundle_of(
                session,
                certificate,
                signer=workshop.services.signer,
                request_id=request,
                previous=issued.certificate_before(session, certificate),
            )
            bundled.append(1000 * (time.perf_counter() - started))
        sizes.append(len(bundle_bytes(bundle)))
    return {
        "certificate_ms": median(certified),
        "bundle_ms": median(bundled),
        "bundle_bytes": median(sizes),
    }


def run(directory: Path) -> dict[str, Any]:
    """Measure at each size."""
    servers = EmbeddedServers(directory / "servers")
    servers.start()
    os.environ |= {"EXPUNGE_ENVIRONMENT": "test", "EXPUNGE_DATA_DIR": str(directory / "data")}
    os.environ |= {"EXPUNGE_DATABASE_URL": servers.database_url}
    os.environ |= {"EXPUNGE_REDIS_URL": servers.redis_url}
    try:
        schema.upgrade(servers.migration_url, service_url=servers.database_url)
        owner = create_engine(servers.migration_url)
        settings = Settings()
        settings.data_dir.mkdir()
        create_keys(settings)
        services = open_services(settings)
        workshop = Workshop(services)
        workshop.define()
        workshop.work()
        record = workshop.split()[0][0]
        workshop.forget(record)
        workshop.dispatch()
        workshop.work()
        found = {}
        for size in SIZES:
            filled = fill(workshop, record, size)
            with owner.begin() as connection:
                connection.execute(text("ANALYZE"))  # as PostgreSQL does by itself after a while
            found[str(size)] = measure(workshop, record) | {"all_at_once_s": filled}
        owner.dispose()
        services.database.dispose()
    finally:
        servers.stop()
    few, many = found.values()
    ratios = {name: many[name] / few[name] for name in ("certificate_ms", "bundle_ms")}
    return {"after_requests": found, "ratios": ratios, "limit": LIMIT}


def main() -> None:
    """Measure, print and write."""
    with tempfile.TemporaryDirectory(prefix="expunge-benchmark-") as directory:
        result = run(Path(directory))
    written = json.dumps(result, indent=1) + "\n"
    RESULTS.write_text(written)
    print(written)
    if max(result["ratios"].values()) > LIMIT:
        raise SystemExit(f"more than {LIMIT} times as long after {SIZES[1]:,} requests")


if __name__ == "__main__":
    main()

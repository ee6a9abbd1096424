"""How fast the transparency log is: ``python -m benchmarks.transparency_log``.

A million entries on an embedded PostgreSQL that syncs its commits to disk. Appending takes turns
with the same INSERTs into a plain copy of the entries' table: rounds of large transactions, and
rounds of transactions of a single entry. The targets: at least 60 % of the plain rate; a proof of
inclusion in under 5 ms at a million entries and in at most 3 times its time at a thousand; and a
check of the whole log, and of every request against it, at 25,000 entries a second.
"""

import json
import os
import platform
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import ARRAY, BigInteger, String, bindparam, inspect, text

from app.access import api_keys
from app.domain.schema import FeatureSchema
from app.domain.trees.merkle import leaf_hash, verify_inclusion
from app.evidence import log
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import merkle, rows
from app.ledger.tables import ForgetRequestRow
from app.operations import fsck, schema
from app.registry.datasets.service import define_dataset
from app.runtime.database import Database
from app.runtime.embedded import EmbeddedServers

ENTRIES = 1_000_000
MOST = 1_300_000
"""More than are ever written."""
SMALL = 1_000
BATCH = 1_000
SINGLES = 500
ROUNDS = 10
PROOFS = 300
LIMITS = {"append_ratio": 0.6, "proof_ms": 5.0, "proof_ratio": 3.0, "fsck_per_s": 25_000}
RESULTS = Path(__file__).parent / "results" / "transparency_log.json"

_STATES = ("accepted", "unlearning", "certified", "completed")
_REQUESTS = text(
    """
    INSERT INTO forget_requests (id, dataset_id, api_key_id, request_digest, state,
        forget_epoch, record_count, push_count, received_at, due_at)
    SELECT 'fr_' || lpad(to_hex(number), 32, '0'), :dataset, :key, '', 'completed', number + 1,
        0, 0, now(), now()
    FROM generate_series(0, :count - 1) AS number
    """
)
_PLAIN = """
    CREATE TABLE plain_entries (
        index bigint PRIMARY KEY, kind varchar NOT NULL, body varchar NOT NULL
    )
"""
_INSERT_PLAIN = text(
    """
    INSERT INTO plain_entries (index, kind, body)
    SELECT :first + ordinality - 1, kind, body
    FROM unnest(:kinds, :bodies) WITH ORDINALITY AS entry (kind, body, ordinality)
    """
).bindparams(
    bindparam("first", type_=BigInteger),
    bindparam("kinds", type_=ARRAY(String)),
    bindparam("bodies", type_=ARRAY(String)),
)


class Bench:
    """A log, and a plain table that takes the same entries."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._written = 0
        schema_ = FeatureSchema(shape=(2,), dtype="float32", offset=0.0, scale=1.0, classes=2)
        with database.transaction() as session:
            self._dataset = define_dataset(session, name="people", schema=schema_).id
            self._key = api_keys.create_key(session, name="caller", scopes=[])[0].id
            session.flush()
            of = {"dataset": self._dataset, "key": self._key, "count": MOST // len(_STATES)}
            session.execute(_REQUESTS, of)
            query = text(rows.query(inspect(ForgetRequestRow)) + " ORDER BY id")
            self._digests = session.execute(query).all()

    def _next(self) -> tuple[str, dict[str, Any]]:
        """Return kind and facts of the next entry: four in a row tell of one request."""
        number, step = divmod(self._written, len(_STATES))
        self._written += 1
        row, sha256 = self._digests[number]
        facts = {"request": row.partition("/")[2], "rows": {row: sha256}}
        return f"request.{_STATES[step]}", facts

    def append(self, count: int) -> None:
        """Append entries in one transaction, as the service does."""
        with self._database.transaction() as session:
            for _ in range(count):
                kind, facts = self._next()
                log.append(session, kind, **facts)

    def insert(self, count: int) -> None:
        """Insert the same entries, under the same kind of lock, and nothing else."""
        with self._database.transaction() as session:
            session.execute(text("SELECT pg_advisory_xact_lock(7)"))
            query = "SELECT clock_timestamp(), (SELECT max(index) FROM plain_entries)"
            now, last = session.execute(text(query)).one()
            moment = now.isoformat(timespec="microseconds")
            before = self._written
            told = [self._next() for _ in range(count)]
            self._written = before
            values = {
                "first": 0 if last is None else last + 1,
                "kinds": [kind for kind, _ in told],
                "bodies": [
                    log.canonical_json({"kind": kind, **facts, "recorded_at": moment})
                    for kind, facts in told
                ],
            }
            session.execute(_INSERT_PLAIN, values)

    def rates(self, *, batch: int, rounds: int, transactions: int) -> dict[str, float]:
        """Let both take turns; return entries a second and the median of the rounds' ratios."""
        seconds: dict[str, list[float]] = {"plain": [], "log": []}
        for round_ in range(rounds):
            turns = [("plain", self.insert), ("log", self.append)]
            for name, write in turns if round_ % 2 else reversed(turns):
                seconds[name].append(_timed(lambda w=write: _repeat(w, batch, transactions)))
        written = batch * transactions
        ratios = [p / t for p, t in zip(seconds["plain"], seconds["log"], strict=True)]
        return {
            "entries_per_transaction": batch,
            "plain_per_s": written / median(seconds["plain"]),
            "log_per_s": written / median(seconds["log"]),
            "ratio": median(ratios),
            "lowest_ratio": min(ratios),
        }

    def fill(self, size: int) -> None:
        """Append until there are ``size`` entries."""
        while missing := size - self.size():
            self.append(min(BATCH, missing))

    def size(self) -> int:
        """Return how many entries there are."""
        with self._database.transaction() as session:
            return merkle.size(session)

    def proof_ms(self, size: int) -> dict[str, float]:
        """Time proofs of inclusion at random places; each is verified."""
        places = Random(1)
        taken = []
        with self._database.transaction() as session:
            root = merkle.root(session, size)
            for _ in range(PROOFS):
                index = places.randrange(size)
                started = time.perf_counter()
                proof = merkle.inclusion_proof(session, index=index, size=size)
                taken.append(1000 * (time.perf_counter() - started))
                leaf = leaf_hash(log.entry(session, index).body.encode())
                verify_inclusion(leaf=leaf, index=index, size=size, proof=proof, root=root)
        taken.sort()
        return {"median": median(taken), "p99": taken[int(0.99 * len(taken))]}

    def fsck(self, signer: StatementSigner) -> dict[str, float]:
        """Time a check of everything, and take the peak of Python's memory in another one."""
        with self._database.transaction() as session:
            last, _ = self._digests[-(-self._written // len(_STATES)) - 1]
            untold = text("DELETE FROM forget_requests WHERE id > :last")
            session.execute(untold, {"last": last.partition("/")[2]})
            log.checkpoint_at_commit(session, signer)
        _analyse(self._database)
        faults: list[fsck.Fault] = []
        tracemalloc.start()
        fsck.check(self._database, keys=[signer.public_key], report=faults.append)
        peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        started = time.perf_counter()
        summary = fsck.check(self._database, keys=[signer.public_key], report=faults.append)
        seconds = time.perf_counter() - started
        if faults:
            raise RuntimeError(f"the log has {len(faults)} fault(s)")
        return {
            "entries": summary.size,
            "seconds": seconds,
            "per_s": summary.size / seconds,
            "rows": summary.rows,
            "peak_mib": peak_mib,
        }


def _repeat(write: Callable[[int], None], batch: int, transactions: int) -> None:
    for _ in range(transactions):
        write(batch)


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(database: Database) -> dict[str, Any]:
    """Fill the log and take every measurement on the way."""
    bench = Bench(database)
    bench.fill(SMALL)
    _analyse(database)
    small = bench.proof_ms(SMALL)
    singles = bench.rates(batch=1, rounds=ROUNDS, transactions=SINGLES)
    batches = bench.rates(batch=BATCH, rounds=ROUNDS, transactions=20)
    bench.fill(ENTRIES)
    late = bench.rates(batch=BATCH, rounds=ROUNDS, transactions=20)
    _analyse(database)
    large = bench.proof_ms(ENTRIES)
    signer = StatementSigner(Ed25519PrivateKey.generate())
    return {
        "append_singly": singles,
        "append_in_batches": batches,
        "append_in_batches_at_a_million": late,
        "inclusion_proof_ms": {str(SMALL): small, str(ENTRIES): large},
        "inclusion_proof_ratio": large["median"] / small["median"],
        "fsck": bench.fsck(signer),
    }


def _analyse(database: Database) -> None:
    """Let the planner know the tables, as PostgreSQL does by itself after a while."""
    with database.engine.begin() as connection:
        connection.execute(text("ANALYZE"))


def main() -> None:
    """Measure, print and write."""
    with tempfile.TemporaryDirectory(prefix="expunge-benchmark-") as directory:
        servers = EmbeddedServers(Path(directory))
        servers.start_postgres()
        try:
            schema.upgrade(servers.migration_url, service_url=servers.database_url)
            database = Database(servers.migration_url)
            with database.engine.begin() as connection:
                connection.execute(text(_PLAIN))
            result = measure(database)
            database.dispose()
        finally:
            servers.stop()
    load = os.getloadavg()[0]
    machine = {"machine": platform.machine(), "cpus": os.cpu_count(), "load_average": load}
    document = {**machine, "limits": LIMITS, **result}
    print(json.dumps(document, indent=1))
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""How fast the transparency log is: ``python -m benchmarks.transparency_log``.

A million entries on an embedded PostgreSQL that syncs its commits to disk. Appending takes turns
with the same INSERTs into a plain copy of the entries' table: rounds of large transactions, and
rounds of transactions of a single entry. The targets: at least 60 % of the plain rate; a proof of
inclusion in under 5 ms at a million entries and in at most 3 times its time at a thousand; and a
check of the whole log at 50,000 entries a second.
"""

from pathlib import Path

ENTRIES = 1_000_000
SMALL = 1_000
BATCH = 1_000
SINGLES = 500
ROUNDS = 10
PROOFS = 300
LIMITS = {"append_ratio": 0.6, "proof_ms": 5.0, "proof_ratio": 3.0, "fsck_per_s": 50_000}
RESULTS = Path(__file__).parent / "results" / "transparency_log.json"

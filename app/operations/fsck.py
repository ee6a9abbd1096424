"""Checks the log for consistency, and the ledger against the log.

The tree is rebuilt from the entries alone and compared with every stored node, checkpoint and
certificate; then every row of the ledger is compared with its newest digest in an entry. Entries
are streamed, so memory does not grow with the log. A log that was rewritten as a whole is
consistent; only a checkpoint kept elsewhere reveals it.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import Connection, Executable, collate, select, text

from app.domain import merkle, strict_json
from app.domain.errors import NoteError
from app.domain.merkle import Frontier, NodeRun
from app.evidence.certificates.note import (
    Checkpoint,
    NoteKey,
    WitnessKey,
    is_cosignature,
    open_checkpoint,
)
from app.evidence.log.checkpoints import origin_from
from app.evidence.log.tables import LogCheckpointRow, LogCosignatureRow, LogEntryRow, TreeNodeRow
from app.evidence.log.trees import LOG
from app.operations.fsck_certificates import KINDS, CertificateCheck
from app.operations.fsck_lineages import check_lineages
from app.operations.fsck_rows import check_rows
from app.runtime.database import Database

_CHUNK = 8192
_STRAY_NODES = text(
    """
    SELECT node.level, node.position
    FROM generate_series(1, 62) AS height
    CROSS JOIN LATERAL (
        SELECT level, position FROM tree_nodes
        WHERE tree = 'log' AND level = height
        AND (position >= CAST(:size AS bigint) >> height OR position < 0)
    ) AS node
    UNION ALL
    SELECT level, position FROM tree_nodes WHERE tree = 'log' AND (level < 1 OR level > 62)
    """
)


@dataclass(frozen=True)
class Fault:
    """A contradiction in the stored data.

    Attributes:
        where: such as ``entry 17``, ``node 3/2`` (level 3, position 2) or ``certificate cert_…``.
        reason: what contradicts what.
        is_harmless: whether it is only a remark: nothing contradicts anything.
    """

    where: str
    reason: str
    is_harmless: bool = False


@dataclass(frozen=True)
class Summary:
    """What was checked.

    Attributes:
        size: number of entries up to the first gap.
        rows: how many other rows the log describes.
        faults: how many faults were reported, without harmless ones.
    """

    size: int
    root: bytes
    checkpoints: int
    certificates: int
    rows: int
    faults: int


@dataclass(frozen=True)
class _Claim:
    """The tree head that a checkpoint claims; ``note`` if its signature is still unchecked."""

    size: int
    name: str
    root: bytes
    origin: str | None = None
    note: str | None = None


def check(
    database: Database,
    *,
    keys: Sequence[Ed25519PublicKey],
    report: Callable[[Fault], None],
    kept: Sequence[Checkpoint] = (),
    witnesses: Sequence[WitnessKey] = (),
) -> Summary:
    """Check a snapshot of the log, reporting each fault; the service may keep running.

    The log must still agree with the ``kept`` checkpoints. The cosignatures of other witnesses than
    these are only remarked on.
    """
    engine = database.engine.execution_options(
        isolation_level="REPEATABLE READ", postgresql_readonly=True
    )
    with engine.begin() as connection:
        return _Check(connection, keys, report).run(kept, witnesses)


class _Check:
    """One pass over the entries; the other tables are read in step with it."""

    def __init__(
        self,
        connection: Connection,
        keys: Sequence[Ed25519PublicKey],
        report: Callable[[Fault], None],
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._report = report
        self._faults = 0
        self._frontier = Frontier()
        self._origin = ""
        self._checkpoints = 0
        self._announced: set[int] = set()
        self._signed: set[int] = set()
        self._certificates = CertificateCheck(connection, keys, self._fault)

    def run(self, kept: Sequence[Checkpoint], witnesses: Sequence[WitnessKey] = ()) -> Summary:
        ours = (
            _Claim(c.size, f"kept checkpoint {c.size}", c.root, origin=c.origin)
            for c in sorted(kept, key=attrgetter("size"))
        )
        claims = heapq.merge(self._stored_claims(), ours, key=attrgetter("size"))
        claim = next(claims, None)
        for rows in self._entries():
            leaves = [merkle.leaf_hash(body.encode()) for _, _, body in rows]
            end = self._frontier.size + len(leaves)
            runs: list[NodeRun] = []
            while claim is not None and claim.size <= end:
                runs += self._grow(leaves, claim.size, end)
                self._check_claim(claim)
                claim = next(claims, None)
            runs += self._grow(leaves, end, end)
            self._check_nodes(runs)
            self._certificates.see([facts for row in rows if (facts := self._facts(row))])
            self._check_signed()
        while claim is not None:
            self._check_claim(claim)
            claim = next(claims, None)
        strays = self._connection.execute(_STRAY_NODES, {"size": self._frontier.size})
        for level, position in strays:
            self._fault(f"node {level}/{position}", "this subtree does not exist")
        check_cosignatures(self._connection, witnesses, fault=self._fault, remark=self._remark)
        compared = check_rows(self._connection, self._fault)
        check_lineages(self._connection, self._fault)
        return Summary(
            size=self._frontier.size,
            root=self._frontier.root(),
            checkpoints=self._checkpoints,
            certificates=self._certificates.count(),
            rows=compared,
            faults=self._faults,
        )

    def _fault(self, where: str, reason: str) -> None:
        self._faults += 1
        self._report(Fault(where, reason))

    def _remark(self, where: str, reason: str) -> None:
        self._report(Fault(where, reason, is_harmless=True))

    def _stream(self, query: Executable) -> Iterator[Sequence[Any]]:
        options = {"yield_per": _CHUNK}
        with self._connection.execute(query, execution_options=options) as result:
            yield from result.partitions()

    def _entries(self) -> Iterator[Sequence[Any]]:
        """Yield (index, kind, body) in chunks; nothing after a gap can be checked."""
        expected = 0
        query = select(LogEntryRow.index, LogEntryRow.kind, LogEntryRow.body)
        for rows in self._stream(query.order_by(LogEntryRow.index)):
            wrong = (i for i, row in enumerate(rows) if row[0] != expected + i)
            good = next(wrong, len(rows))
            if expected == 0 and good:
                self._origin = origin_from(rows[0][2])
            if good:
                yield rows[:good]
            expected += good
            if good < len(rows):
                self._gap(expected, rows[good][0])
                return

    def _gap(self, expected: int, found: int) -> None:
        if found < expected:
            self._fault(f"entry {found}", "entries count from 0; what follows was not checked")
        else:
            reason = f"missing, up to entry {found - 1}; what follows was not checked"
            self._fault(f"entry {expected}", reason)

    def _facts(self, entry: tuple[int, str, str]) -> dict[str, Any] | None:
        """Return an entry's facts if it is about a certificate or a key's retirement."""
        index, kind, body = entry
        try:
            facts = strict_json.loads(body)
            agrees = facts["kind"] == kind
        except (ValueError, KeyError, TypeError, RecursionError):
            self._fault(f"entry {index}", "not an entry's JSON")
            return None
        if not agrees:
            self._fault(f"entry {index}", "its kind is not the one in its body")
        if facts.get("signed"):
            self._announced.add(index + 1)
        return {**facts, "index": index} if facts["kind"] in KINDS else None

    def _grow(self, leaves: Sequence[bytes], size: int, end: int) -> list[NodeRun]:
        """Add the leaves of the current chunk, which ends at ``end``, up to a size."""
        size = max(size, self._frontier.size)
        start = len(leaves) - (end - self._frontier.size)
        return self._frontier.extend(leaves[start : len(leaves) - (end - size)])

    def _check_nodes(self, runs: list[NodeRun]) -> None:
        """Compare the nodes completed by one chunk of entries, level by level."""
        node = TreeNodeRow
        by_place = attrgetter("level", "position")
        for level, group in groupby(sorted(runs, key=by_place), key=attrgetter("level")):
            parts = list(group)
            first = parts[0].position
            hashes = [hashed for part in parts for hashed in part.hashes]
            query = select(node.position, node.hash).where(
                node.tree == LOG,
                node.level == level,
                node.position.between(first, first + len(hashes) - 1),
            )
            stored = {row[0]: row[1] for row in self._connection.execute(query).all()}
            for position, hashed in enumerate(hashes, first):
                if stored.get(position) != hashed:
                    reason = "differs from its entries" if position in stored else "missing"
                    self._fault(f"node {level}/{position}", reason)

    def _stored_claims(self) -> Iterator[_Claim]:
        checkpoint = LogCheckpointRow
        query = select(checkpoint.size, checkpoint.root, checkpoint.note)
        for rows in self._stream(query.order_by(checkpoint.size)):
            self._checkpoints += len(rows)
            for size, root, note in rows:
                yield _Claim(size, f"checkpoint {size}", root, note=note)

    def _check_claim(self, claim: _Claim) -> None:
        if claim.size > self._frontier.size:
            self._fault(claim.name, "it covers entries that do not exist")
        elif claim.size < self._frontier.size or claim.root != self._frontier.root():
            self._fault(claim.name, "its root is not that of the entries")
        if claim.origin not in (None, self._origin):
            self._fault(claim.name, "it belongs to a log with another first entry")
        if claim.note is not None:
            self._signed.add(claim.size)
            self._check_note(claim, claim.note)

    def _check_signed(self) -> None:
        """Compare the checkpoints so far with the entries marked as signed."""
        for size in sorted(self._announced - self._signed):
            self._fault(f"checkpoint {size}", f"entry {size - 1} says that it was signed: missing")
        for size in sorted(self._signed - self._announced):
            self._fault(f"checkpoint {size}", "no entry says that it was signed")
        self._announced.clear()
        self._signed.clear()

    def _check_note(self, claim: _Claim, note: str) -> None:
        try:
            keys = [NoteKey(self._origin, key) for key in self._keys]
            signed = open_checkpoint(note.encode(), keys)
        except NoteError as error:
            self._fault(claim.name, str(error))
            return
        if (signed.size, signed.root) != (claim.size, claim.root):
            self._fault(claim.name, "its note differs from its row")


def check_cosignatures(
    connection: Connection,
    witnesses: Sequence[WitnessKey],
    *,
    fault: Callable[[str, str], None],
    remark: Callable[[str, str], None],
) -> None:
    """Check each cosignature, and remark on the witnesses whose cosignatures are not shown."""
    row, checkpoint = LogCosignatureRow, LogCheckpointRow
    query = (
        select(row.witness, row.size, row.line, checkpoint.note)
        .outerjoin(checkpoint, checkpoint.size == row.size)
        .order_by(collate(row.witness, "C"), row.size)
    )
    known = set(map(str, witnesses))
    with connection.execute(query, execution_options={"yield_per": _CHUNK}) as stored:
        for witness, cosignatures in groupby(stored, key=attrgetter("witness")):
            key = _key(witness)
            for _, size, line, note in cosignatures:
                where = f"cosignature of checkpoint {size} by {witness!a}"
                if key is None:
                    fault(where, "this is not a witness's key")
                elif note is None:
                    fault(where, "this checkpoint does not exist")
                elif not is_cosignature(line, note, key):
                    fault(where, "this witness did not sign it")
            if key is not None and witness not in known:
                meaning = "EXPUNGE_WITNESSES does not name it: its cosignatures are not shown"
                remark(f"witness {witness!a}", meaning)


def _key(witness: str) -> WitnessKey | None:
    try:
        return WitnessKey.from_text(witness)
    except NoteError:
        return None

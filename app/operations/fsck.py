"""Checks the log for consistency, and the ledger against the log.

The tree is rebuilt from the entries alone and compared with every stored node, checkpoint and
certificate; then every row of the ledger is compared with its newest digest in an entry. Entries
are streamed, so memory does not grow with the log. A log that was rewritten as a whole is
consistent; only a checkpoint kept elsewhere reveals it.
"""

import hashlib
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from securesystemslib.dsse import Envelope
from sqlalchemy import Connection, Executable, collate, func, inspect, select, text

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
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.trusted_keys import TrustedKey
from app.evidence.log.checkpoints import origin_from
from app.evidence.log.tables import LogCheckpointRow, LogCosignatureRow, LogEntryRow, TreeNodeRow
from app.evidence.log.trees import LOG
from app.evidence.log.writing import digests_query
from app.operations.fsck_lineages import check_lineages
from app.operations.schema import logged_tables
from app.registry.tables import VersionRow
from app.runtime.database import Database

_CHUNK = 8192
_RETIRED = "key.retired"
_KINDS = frozenset({"certificate.issued", _RETIRED})
"""The kinds of entries that are checked."""
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
# As ``app/registry/datasets/digests.py`` makes them.
_SETS = """
    SELECT 'forget_request_records/' || request_id AS row, encode(sha256(
        coalesce(salt, '') || string_agg(
            int8send(record_seq) || commitment || CASE WHEN salt IS NULL THEN ''
            ELSE record_key || coalesce(subject_key, decode(repeat('00', 32), 'hex')) END,
            '' ORDER BY record_seq
        )
    ), 'hex') AS sha256
    FROM forget_request_records JOIN records ON seq = record_seq
    JOIN forget_requests ON id = request_id GROUP BY request_id, salt
    UNION ALL
    SELECT 'records/' || dataset_id || '/' || forgotten_epoch,
        encode(sha256(string_agg(int8send(seq), '' ORDER BY seq)), 'hex')
    FROM records WHERE forgotten_epoch IS NOT NULL GROUP BY dataset_id, forgotten_epoch
"""
# Cut out, not parsed as JSON: one damaged entry must not stop the search. Within a value the quotes
# would be escaped, so this can only be the member; names and digests need no escapes.
_COMPARED = """
    WITH told AS (
        SELECT DISTINCT ON (row) split_part(item, '"', 2) COLLATE "C" AS row,
            nullif(split_part(item, '"', 4), '') AS sha256
        FROM log_entries, string_to_table(
            split_part(split_part(body, '"rows":{', 2), '}', 1), ','
        ) AS item
        ORDER BY row, index DESC
    ), compared AS MATERIALIZED (
        SELECT coalesce(told.row, stored.row) AS row,
            told.sha256 AS told, stored.sha256 AS stored
        FROM (SELECT * FROM told WHERE sha256 IS NOT NULL) AS told
        FULL JOIN (__STORED__) AS stored ON told.row = stored.row COLLATE "C"
    )
    SELECT row, told IS NULL, stored IS NULL, NULL FROM compared WHERE told IS DISTINCT FROM stored
    UNION ALL
    SELECT '', false, false, count(*) FROM compared
"""
_COUNTS = text(
    """
    WITH told AS (
        SELECT split_part(split_part(body, '"dataset":"', 2), '"', 1) AS dataset, kind,
            CAST(substring(body FROM '"records":([0-9]{1,18})[,}]') AS bigint) AS records
        FROM log_entries WHERE kind IN ('records.pushed', 'records.erased')
    )
    SELECT dataset FROM (
        SELECT dataset, sum(records) FILTER (WHERE kind = 'records.pushed') AS pushed,
            sum(records) FILTER (WHERE kind = 'records.erased') AS erased
        FROM told GROUP BY dataset
    ) AS told FULL JOIN (
        SELECT dataset_id AS dataset, count(*) AS stored, count(erased_at) AS gone
        FROM records GROUP BY dataset_id
    ) AS stored USING (dataset)
    WHERE coalesce(pushed, 0) <> coalesce(stored, 0) OR coalesce(erased, 0) <> coalesce(gone, 0)
    """
)
_LEFT = text(
    """
    SELECT DISTINCT request_id FROM forget_request_records
    JOIN forget_requests ON id = request_id JOIN records ON seq = record_seq
    WHERE (state = 'completed' OR completed_at IS NOT NULL) AND erased_at IS NULL
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
        self._certificates = _CertificateCheck(connection, keys, self._fault)

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
        self._check_cosignatures(witnesses)
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
                found = rows[good][0]
                where, reason = found, "entries count from 0"
                if found > expected:
                    where, reason = expected, f"missing, up to entry {found - 1}"
                self._fault(f"entry {where}", f"{reason}; what follows was not checked")
                return

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
        return {**facts, "index": index} if facts["kind"] in _KINDS else None

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

    def _check_cosignatures(self, witnesses: Sequence[WitnessKey]) -> None:
        """Check each cosignature, and remark on the witnesses whose cosignatures are not shown."""
        row, checkpoint = LogCosignatureRow, LogCheckpointRow
        query = (
            select(row.witness, row.size, row.line, checkpoint.note)
            .outerjoin(checkpoint, checkpoint.size == row.size)
            .order_by(collate(row.witness, "C"), row.size)
        )
        known = set(map(str, witnesses))
        with self._connection.execute(query, execution_options={"yield_per": _CHUNK}) as stored:
            for witness, cosignatures in groupby(stored, key=attrgetter("witness")):
                key = None
                with suppress(NoteError):
                    key = WitnessKey.from_text(witness)
                for _, size, line, note in cosignatures:
                    where = f"cosignature of checkpoint {size} by {witness!a}"
                    if key is None:
                        self._fault(where, "this is not a witness's key")
                    elif note is None:
                        self._fault(where, "this checkpoint does not exist")
                    elif not is_cosignature(line, note, key):
                        self._fault(where, "this witness did not sign it")
                if key is not None and witness not in known:
                    meaning = "EXPUNGE_WITNESSES does not name it: its cosignatures are not shown"
                    self._report(Fault(f"witness {witness!a}", meaning, is_harmless=True))


class _CertificateCheck:
    """Compares certificates with the entries that record them, and with their keys' retirement."""

    def __init__(
        self,
        connection: Connection,
        keys: Sequence[Ed25519PublicKey],
        fault: Callable[[str, str], None],
    ) -> None:
        self._connection = connection
        self._keys = {TrustedKey(key).id: key for key in keys}
        self._retired_at: dict[str, int] = {}
        self._fault = fault

    def see(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Check the certificates that these entries record; ``index`` is the entry's index."""
        for entry in entries:
            if entry["kind"] == _RETIRED:
                self._retired_at.setdefault(str(entry.get("key")), entry["index"])
        entries = [entry for entry in entries if entry["kind"] != _RETIRED]
        if not entries:
            return
        ids = [_id_in(entry) for entry in entries]
        query = select(*CertificateRow.__table__.columns).where(CertificateRow.id.in_(ids))
        rows = {row.id: row for row in self._connection.execute(query)}
        of_versions = VersionRow.id.in_({row.version_id for row in rows.values()})
        found = self._connection.execute(
            select(VersionRow.id, VersionRow.members).where(of_versions)
        )
        members = {row.id: row.members for row in found}
        for entry, certificate_id in zip(entries, ids, strict=True):
            where = f"certificate {certificate_id}"
            stored = rows.get(certificate_id)
            if stored is None:
                self._fault(where, f"entry {entry['index']} records it, but it is missing")
                continue
            self._check_envelope(
                where,
                entry["index"],
                stored.envelope,
                entry.get("sha256"),
                members=members.get(stored.version_id),
            )

    def count(self) -> int:
        """Return how many certificates there are."""
        return self._connection.scalar(select(func.count()).select_from(CertificateRow)) or 0

    def _check_envelope(
        self, where: str, index: int, envelope_json: str, sha256: object, *, members: object
    ) -> None:
        try:
            envelope = Envelope.from_dict(strict_json.loads(envelope_json))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._fault(where, "its envelope cannot be read")
            return
        if hashlib.sha256(envelope.payload).hexdigest() != sha256:
            self._fault(where, "its statement is not the one that was recorded")
        elif _states_other_members(envelope.payload, members):
            self._fault(where, "its version names other members than it does")
        signer = self._signer(envelope)
        if signer is None:
            self._fault(where, "none of the service's keys has signed it")
        # By position, not by time: the writer of an entry may choose its time.
        elif index > self._retired_at.get(signer, index):
            self._fault(where, f"entry {index} records it, after its signing key was retired")

    def _signer(self, envelope: Envelope) -> str | None:
        for key_id, signature in envelope.signatures.items():
            try:
                self._keys[key_id].verify(bytes.fromhex(signature.signature), envelope.pae())
            except (KeyError, InvalidSignature, ValueError):
                continue
            return str(key_id)
        return None


def _states_other_members(payload: bytes, members: object) -> bool:
    """Return whether a statement about a mechanism's result differs from its version's members."""
    try:
        predicate = strict_json.loads(payload)["predicate"]
        return "mechanism" in predicate and predicate.get("members") != members
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return True


def _id_in(entry: Mapping[str, Any]) -> str:
    """Return the id in an entry; a damaged entry may hold text that no query accepts."""
    named = entry.get("certificate")
    return named if isinstance(named, str) and named.isascii() and named.isprintable() else ""


def check_rows(connection: Connection, fault: Callable[[str, str], None]) -> int:
    """Report every row that is not what the log says; return how many were compared."""
    stored = " UNION ALL ".join((_SETS, *map(digests_query, map(inspect, logged_tables()))))
    compared = 0
    statement = text(_COMPARED.replace("__STORED__", stored))
    for row, untold, missing, count in connection.execute(statement):
        if count is not None:
            compared = count
        elif untold:
            fault(_shown(row), "no entry describes it")
        elif missing:
            fault(_shown(row), "the log describes it, but it is missing")
        else:
            fault(_shown(row), "it differs from what the log says")
    for dataset in connection.scalars(_COUNTS):
        fault(_shown(f"datasets/{dataset}"), "its records are not as many as the log says")
    for request in connection.scalars(_LEFT):
        fault(f"forget_requests {request}", "it is completed, but not all its records are erased")
    return compared


def _shown(row: str) -> str:
    name = row.replace("/", " ", 1)
    return name if name.isascii() and name.isprintable() else ascii(name)

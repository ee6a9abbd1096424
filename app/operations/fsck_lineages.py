"""Checks what certificates account for, by counting anew from the requests' own rows.

For each lineage of a model, its requests are read again in the order in which they were accounted
for. The totals, the trees and every certificate have to follow from them; and no request that a
version of the lineage covers may be missing.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, func, select, text
from sqlalchemy.orm import Session

from app.domain.errors import ExpungeError, TargetNotMetError
from app.domain.merkle import Frontier, NodeRun
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.statement import before_training
from app.evidence.certificates.tables import CertificateRow
from app.evidence.log.trees import LOG
from app.ledger.certificates import accounts
from app.ledger.certificates.accounts import (
    FIELDS,
    Lineage,
    NamedRecord,
    Totals,
    leaves_of,
    totals_after,
)
from app.ledger.certificates.issuing import begun_at
from app.ledger.tables import AccountedRequestRow
from app.registry.counts import Counts
from app.registry.counts import counted as counted_anew
from app.registry.datasets.tables import DatasetRow, RecordRow
from app.registry.membership import membership_of
from app.registry.tables import ModelCountRow, ModelRow, VersionRow
from app.registry.training_set import TrainingSet

_NODES: Final = text("SELECT level, position, hash FROM tree_nodes WHERE tree = :tree")
_STRAYS: Final = text(
    "SELECT tree, count(*) FROM tree_nodes WHERE tree <> ALL(:known) GROUP BY tree"
)
_COUNTS: Final = ("requests", "records", "excluded_records")
Fault = Callable[[str, str], None]


def check_lineages(connection: Connection, fault: Fault) -> None:
    """Report every contradiction between requests, totals, trees and certificates."""
    known = [LOG]
    with Session(connection) as session:
        for lineage in _lineages(session, fault):
            known += lineage.trees
            _Check(session, lineage, fault).run()
        _check_bases(session, fault)
        _check_counts(session, fault)
        for tree, count in session.execute(_STRAYS, {"known": known}):
            fault(f"tree {tree}", f"{count} nodes of no lineage's tree")


def _lineages(session: Session, fault: Fault) -> Iterator[Lineage]:
    """Yield the lineages that have a version; report those that have requests alone."""
    query = select(ModelRow, VersionRow).join(VersionRow, VersionRow.model_id == ModelRow.id)
    found: dict[tuple[str, int], Lineage] = {}
    for model, version in session.execute(query.order_by(ModelRow.id, VersionRow.number)):
        lineage = Lineage.of(model, version)
        if found.setdefault((model.id, version.since_version), lineage) != lineage:
            fault(f"version {version.id}", "it learned from other records than its lineage")
    row = AccountedRequestRow
    for model_id, since in session.execute(select(row.model_id, row.since_version).distinct()):
        if (model_id, since) not in found:
            fault(f"lineage {model_id}/{since}", "requests of a lineage without a version")
    yield from found.values()


def _check_bases(session: Session, fault: Fault) -> None:
    """Report certificates of networks on another base or backbone than the one before."""
    query = select(CertificateRow.model_id, CertificateRow.id, CertificateRow.envelope)
    bases: dict[tuple[str, str], object] = {}
    for model_id, certificate_id, envelope in session.execute(
        query.order_by(CertificateRow.model_id, CertificateRow.number)
    ):
        predicate = _predicate(envelope)
        for kind in ("base", "backbone"):
            base = predicate.get(kind)
            if bases.setdefault((model_id, kind), base) != base:
                reason = f"its network stands on another {kind} than before"
                fault(f"certificate {certificate_id}", reason)
            bases[model_id, kind] = base


def _check_counts(session: Session, fault: Fault) -> None:
    """Report counts that are kept and are not those of the records."""
    stored = select(
        RecordRow.dataset_id,
        func.count(),
        func.count().filter(RecordRow.forgotten_epoch.is_(None)),
    ).group_by(RecordRow.dataset_id)
    real = {dataset_id: found for dataset_id, *found in session.execute(stored)}
    kept = select(DatasetRow.id, DatasetRow.pushed, DatasetRow.remembered)
    for dataset_id, *found in session.execute(kept):
        if found != real.get(dataset_id, [0, 0]):
            fault(f"dataset {dataset_id}", "it has other numbers of records than it counts")
    rows: dict[str, list[Counts]] = {}
    query = select(*(getattr(ModelCountRow, name) for name in ("model_id", *Counts._fields)))
    for model_id, *counted in session.execute(query.order_by(ModelCountRow.member)):
        rows.setdefault(model_id, []).append(Counts(*counted))
    for model in session.scalars(select(ModelRow)):
        membership, begun = membership_of(model), begun_at(model)
        counts = (
            []
            if membership is None
            else counted_anew(session, model.dataset_id, membership, begun_at_epoch=begun)
        )
        if counts != rows.get(model.id, []):
            fault(f"model {model.id}", "its lineage has other numbers of records than it counts")
        if membership is not None and TrainingSet(session, model).contradicts_kept():
            fault(f"model {model.id}", "its lineage has other records than are kept of it")


class _Check:
    """One lineage, counted anew."""

    def __init__(self, session: Session, lineage: Lineage, fault: Fault) -> None:
        self._session = session
        self._lineage = lineage
        self._key = lineage.key
        self._report = fault
        self._totals = Totals()
        self._frontiers = {tree: Frontier() for tree in lineage.trees}
        self._runs: dict[str, list[NodeRun]] = {tree: [] for tree in lineage.trees}

    def run(self) -> None:
        certificates = self._certificates()
        self._check_certificates(certificates)
        for row, covered, excluded in self._requests():
            where = f"request {row.request_id}"
            if row.begun_at_epoch != self._totals.begun_at_epoch:
                # From here on the weights are of another training: it is counted from there.
                ended = self._ended.values() if row.begun_at_epoch else ()
                before = sum(end <= row.begun_at_epoch for end in ended)
                self._totals = replace(
                    self._totals, begun_at_epoch=row.begun_at_epoch, before_training=before
                )
            try:
                self._totals = totals_after(self._totals, covered, excluded, self._seen)
            except TargetNotMetError as error:
                return self._fault(f"{where}: {error}")
            self._ended.update({each.seq: each.forgotten_epoch or 0 for each in covered})
            self._grow(self._lineage.leaves_of(covered), leaves_of(excluded))
            if any(getattr(row, name) != getattr(self._totals, name) for name in FIELDS):
                return self._fault(f"its totals after {where} are not those of a recount")
            self._check_certificates(certificates)
        for certificate_id, _ in certificates:
            self._fault(f"certificate {certificate_id} states other trees, or other totals")
        for tree in self._lineage.trees:
            self._check_nodes(tree)
        self._check_missing()
        return None

    def _fault(self, reason: str) -> None:
        self._report("lineage {}/{}".format(*self._key), reason)

    def _requests(
        self,
    ) -> Iterator[tuple[AccountedRequestRow, list[NamedRecord], list[NamedRecord]]]:
        """Yield each request in order, with its covered and excluded records."""
        self._seen: set[int] = set()
        self._ended: dict[int, int] = {}
        found = accounts.named_of_lineage(self._session, self._key)
        named = {
            request_id: list(group)
            for request_id, group in groupby(found, key=attrgetter("request_id"))
        }
        for row in accounts.all_of(self._session, self._key):
            yield row, *self._lineage.split(named.get(row.request_id, []))

    def _grow(self, *leaves: list[bytes]) -> None:
        for (tree, frontier), added in zip(self._frontiers.items(), leaves, strict=True):
            runs = self._runs[tree]
            if added:
                runs.append(NodeRun(0, frontier.size, added))
            runs += frontier.extend(added)

    def _certificates(self) -> deque[tuple[str, dict[str, Any]]]:
        """Return the predicates of the lineage's certificates, oldest first."""
        query = select(CertificateRow.id, CertificateRow.envelope)
        mine = CertificateRow.model_id == self._lineage.model_id
        rows = self._session.execute(query.where(mine).order_by(CertificateRow.number))
        stated = ((certificate_id, _predicate(envelope)) for certificate_id, envelope in rows)
        since = self._lineage.since_version
        return deque(each for each in stated if _forgotten(each[1]).get("since_version") == since)

    def _check_certificates(self, certificates: deque[tuple[str, dict[str, Any]]]) -> None:
        """Take those away that state the trees and totals as they are now."""
        now = dict(
            zip(
                ("covered", "excluded"),
                (
                    {"size": frontier.size, "root": frontier.root().hex()}
                    for frontier in self._frontiers.values()
                ),
                strict=True,
            )
        )
        now |= {name: getattr(self._totals, name) for name in _COUNTS}
        while certificates:
            predicate = certificates[0][1]
            stated = _forgotten(predicate)
            names = ("excluded",) if "first" in stated else now.keys()
            if any(stated.get(name) != now[name] for name in names):
                break
            if "first" not in stated and stated.get("before_training") != self._before(predicate):
                break
            certificates.popleft()

    def _before(self, predicate: dict[str, Any]) -> int | None:
        """Return what a certificate has to say of records that left before the training."""
        try:
            return before_training(
                self._totals.before_training,
                self._totals.records,
                mechanism=predicate["mechanism"]["name"],
                relation=predicate["guarantee"]["neighbouring_relation"],
            )
        except (KeyError, TypeError, ExpungeError):
            return None

    def _check_nodes(self, tree: str) -> None:
        rows = self._session.execute(_NODES, {"tree": tree})
        stored = {(level, position): bytes(digest) for level, position, digest in rows}
        for run in self._runs[tree]:
            for position, digest in enumerate(run.hashes, run.position):
                found = stored.pop((run.level, position), None)
                if found != digest:
                    how = "missing" if found is None else "differs from its commitments"
                    self._report(f"node {tree}/{run.level}/{position}", how)
        for level, position in stored:
            self._report(f"node {tree}/{level}/{position}", "this subtree does not exist")

    def _check_missing(self) -> None:
        """Report requests that the lineage's versions cover and its trees do not have."""
        through = accounts.covered_through(self._session, self._key)
        found = accounts.named_between(
            self._session,
            self._key,
            dataset_id=self._lineage.dataset_id,
            after=0,
            through=through,
        )
        for request_id in {each.request_id for each in found}:
            self._fault(f"it covers request {request_id}, but does not account for it")


def _predicate(envelope: str) -> dict[str, Any]:
    """Return what a certificate states; nothing where it is damaged."""
    try:
        return dict(statement_of(envelope)["predicate"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _forgotten(predicate: dict[str, Any]) -> dict[str, Any]:
    """Return what a predicate says of forgotten records; nothing where it is damaged."""
    stated = predicate.get("forgotten", {})
    return stated if isinstance(stated, dict) else {}

"""What the certificates of a lineage account for: two append-only trees, and running totals.

A lineage is what became of one training, or of one upload, of a model. Each request that one of its
certificates accounts for adds the salted commitments of its records to the lineage's trees, once:
to the tree of covered records those that the weights may have learned from, to the tree of excluded
ones all others. A request's leaves are adjacent in either tree, sorted, so that their order tells
nothing. Nothing is read of earlier requests but O(log n) nodes and the totals up to the last one.

Which tree a record belongs to never changes within a lineage (``app/registry/membership.py``). A
request that was cancelled counts, too: its records stay forgotten.

The caller holds the model's lock.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Final

from sqlalchemy.orm import Session

from app.domain.commitments import member_commitment
from app.domain.errors import TargetNotMetError
from app.domain.trees import merkle
from app.domain.trees.merkle import Frontier, NodeRun
from app.evidence.certificates.schema import Excluded, Forgotten, Tree
from app.evidence.log import nodes
from app.ledger.certificates import accounted
from app.ledger.certificates.accounted import LineageKey, NamedRecord
from app.registry.membership import Membership, membership_at
from app.registry.tables import ModelRow, VersionRow


def tree_names(key: LineageKey) -> tuple[str, str]:
    """Return the names of a lineage's trees: of its covered records, and of the excluded ones."""
    model_id, since_version = key
    return f"{model_id}/{since_version}/covered", f"{model_id}/{since_version}/excluded"


@dataclass(frozen=True)
class Lineage:
    """A model's versions since a training, or since an upload.

    Attributes:
        since_version: the number of its first version.
        membership: which records its weights may have learned from.
    """

    model_id: str
    dataset_id: str
    since_version: int
    membership: Membership

    @classmethod
    def of(cls, model: ModelRow, version: VersionRow) -> "Lineage":
        """Return the lineage of a version, stored or about to be."""
        membership = membership_at(
            model, through=version.trained_through, after_epoch=version.trained_after_epoch
        )
        return cls(model.id, model.dataset_id, version.since_version, membership)

    @property
    def key(self) -> LineageKey:
        """Its model, and the number of its first version."""
        return self.model_id, self.since_version

    @property
    def trees(self) -> tuple[str, str]:
        """The names of its trees; see ``tree_names``."""
        return tree_names(self.key)

    def split(self, found: Iterable[NamedRecord]) -> tuple[list[NamedRecord], list[NamedRecord]]:
        """Part records by tree: the covered ones and the excluded ones."""
        parts: tuple[list[NamedRecord], list[NamedRecord]] = ([], [])
        for named in found:
            parts[not self.membership.touched_by(named)].append(named)
        return parts

    def member_of(self, named: NamedRecord) -> int:
        """Return which member of an ensemble learned from a record."""
        return self.membership.member_of(named.record_key, named.subject_key)

    def leaves_of(self, covered: Iterable[NamedRecord]) -> list[bytes]:
        """Return the hashed leaves of one request's covered records, in their order.

        Those of an ensemble say which member each record belonged to.
        """
        if self.membership.members is None:
            return leaves_of(covered)
        return _hashed(member_commitment(n.commitment, self.member_of(n)) for n in covered)


@dataclass(frozen=True)
class Totals:
    """The counts of a lineage's trees after one of its requests; see ``AccountedRequestRow``."""

    number: int = 0
    covered_size: int = 0
    excluded_size: int = 0
    requests: int = 0
    records: int = 0
    excluded_records: int = 0
    forgotten_through: int = 0
    begun_at_epoch: int = 0
    before_training: int = 0


@dataclass(frozen=True)
class Places:
    """Where a request's commitments are in the two trees of a lineage."""

    covered: range = range(0)
    excluded: range = range(0)


def places_of(session: Session, key: LineageKey, request_id: str) -> Places:
    """Return where a request's commitments are in a lineage's trees, nowhere if it is not there."""
    row, before = accounted.place_of(session, key, request_id)
    if row is None:
        return Places()
    return Places(
        range(0 if before is None else before.covered_size, row.covered_size),
        range(0 if before is None else before.excluded_size, row.excluded_size),
    )


FIELDS: Final = tuple(Totals.__dataclass_fields__)


class Account:
    """The trees and totals of a lineage, with more requests than are stored of it."""

    def __init__(self, session: Session, lineage: Lineage, *, begun_at_epoch: int = 0) -> None:
        """Read where they stand.

        ``begun_at_epoch`` is when the training of the present weights began, if it counts: what
        was forgotten by then is ``before_training``.
        """
        self.lineage = lineage
        self._session = session
        row = accounted.last_of(session, lineage.key)
        self.totals = Totals() if row is None else Totals(**{f: getattr(row, f) for f in FIELDS})
        if self.totals.begun_at_epoch != begun_at_epoch:
            before = _before(session, lineage, begun_at_epoch) if begun_at_epoch else 0
            self.totals = replace(
                self.totals, begun_at_epoch=begun_at_epoch, before_training=before
            )
        sizes = (self.totals.covered_size, self.totals.excluded_size)
        stored = nodes.frontiers(session, dict(zip(lineage.trees, sizes, strict=True)))
        self._covered, self._excluded = (stored[tree] for tree in lineage.trees)
        self._grown: list[tuple[str, NodeRun]] = []
        self._rows: list[dict[str, object]] = []
        self._added: set[str] = set()
        self._seen: set[int] = set()

    def sweep(self, *, after_epoch: int, through_epoch: int) -> None:
        """Add all requests up to an epoch that no certificate of the lineage accounts for yet.

        ``after_epoch`` is the newest that its versions cover so far.
        """
        lineage = self.lineage
        found = accounted.named_between(
            self._session,
            lineage.key,
            dataset_id=lineage.dataset_id,
            after=after_epoch,
            through=through_epoch,
        )
        self._add(found)

    def add(self, request_ids: Collection[str]) -> None:
        """Add requests, those apart that are there already."""
        self._add(accounted.named_by(self._session, self.lineage.key, request_ids))

    def coverage(self, *, through_epoch: int) -> Forgotten:
        """Return what a certificate states of weights that are without all up to an epoch.

        Raises:
            TargetNotMetError: the trees have a record that was forgotten after that.
        """
        totals = self.totals
        if totals.forgotten_through > through_epoch:
            raise TargetNotMetError("a record that was certified as forgotten is not covered")
        return Forgotten(
            since_version=self.lineage.since_version,
            requests=totals.requests,
            records=totals.records,
            covered=_head(self._covered),
            excluded_records=totals.excluded_records,
            excluded=_head(self._excluded),
            before_training=totals.before_training,
        )

    def exclusion(self, request_ids: Sequence[str]) -> Excluded:
        """Return what a certificate states of stored requests that never concerned the weights.

        They have to follow one another.

        Raises:
            TargetNotMetError: one names a record that the weights may have learned from.
        """
        key = self.lineage.key
        places = [places_of(self._session, key, request_id) for request_id in request_ids]
        first = min(place.excluded.start for place in places)
        end = max(place.excluded.stop for place in places)
        leaves = sum(len(place.excluded) for place in places)
        if any(place.covered for place in places) or leaves != end - first:
            raise TargetNotMetError("not all of these records are known to have been left out")
        return Excluded(
            since_version=self.lineage.since_version,
            requests=len(places),
            records=accounted.count_records(self._session, request_ids),
            excluded=_head(self._excluded),
            first=first,
            leaves=leaves,
        )

    def store(self) -> None:
        """Write what was added."""
        nodes.add(self._session, self._grown)
        accounted.add(self._session, self.lineage.key, self._rows)
        self._grown, self._rows = [], []

    def _add(self, found: Sequence[NamedRecord]) -> None:
        """Add the records of requests, given in the order of the requests."""
        lineage = self.lineage
        found = [named for named in found if named.request_id not in self._added]
        self._added.update(named.request_id for named in found)
        seqs = {named.seq for named in found}
        self._seen |= accounted.records_among(self._session, lineage.key, seqs)
        leaves: tuple[list[bytes], list[bytes]] = [], []
        for request_id, group in groupby(found, key=attrgetter("request_id")):
            covered, excluded = lineage.split(group)
            self.totals = totals_after(self.totals, covered, excluded, self._seen)
            leaves[0].extend(lineage.leaves_of(covered))
            leaves[1].extend(leaves_of(excluded))
            self._rows.append({"request_id": request_id, **asdict(self.totals)})
        frontiers = (self._covered, self._excluded)
        for tree, frontier, added in zip(lineage.trees, frontiers, leaves, strict=True):
            if added:
                self._grown.append((tree, NodeRun(0, frontier.size, added)))
            self._grown += [(tree, run) for run in frontier.extend(added)]


def totals_after(
    totals: Totals,
    covered: Sequence[NamedRecord],
    excluded: Sequence[NamedRecord],
    seen: set[int],
) -> Totals:
    """Return the totals after one more request, and note its records as ``seen``.

    Raises:
        TargetNotMetError: the weights may have learned from a record that is not forgotten.
    """
    new = [named for named in covered if named.seq not in seen]
    newly_excluded = sum(named.seq not in seen for named in excluded)
    seen.update(named.seq for named in (*covered, *excluded))
    return replace(
        totals,
        number=totals.number + 1,
        covered_size=totals.covered_size + len(covered),
        excluded_size=totals.excluded_size + len(excluded),
        requests=totals.requests + bool(covered),
        records=totals.records + len(new),
        excluded_records=totals.excluded_records + newly_excluded,
        forgotten_through=max([totals.forgotten_through, *map(_epoch, covered)]),
        before_training=totals.before_training
        + sum(_epoch(named) <= totals.begun_at_epoch for named in new),
    )


def _head(frontier: Frontier) -> Tree:
    return Tree(size=frontier.size, root=frontier.root().hex())


def _epoch(named: NamedRecord) -> int:
    if named.forgotten_epoch is None:
        raise TargetNotMetError("a request names a record that is not forgotten")
    return named.forgotten_epoch


def leaves_of(named: Iterable[NamedRecord]) -> list[bytes]:
    """Return the hashed leaves of one request in one tree, in their order."""
    return _hashed(n.commitment for n in named)


def _hashed(commitments: Iterable[bytes]) -> list[bytes]:
    return [merkle.leaf_hash(commitment) for commitment in sorted(commitments)]


def _before(session: Session, lineage: Lineage, epoch: int) -> int:
    """Count the covered records that were forgotten by an epoch, anew from all requests."""
    found = accounted.named_of_lineage(session, lineage.key)
    covered, _ = lineage.split(found)
    return sum(end <= epoch for end in {named.seq: _epoch(named) for named in covered}.values())

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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    and_,
    exists,
    func,
    insert,
    literal,
    select,
    true,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain import merkle
from app.domain.errors import TargetNotMetError
from app.domain.ids import member_commitment
from app.domain.merkle import Frontier, NodeRun
from app.evidence.certificates.schema import Excluded, Forgotten, Tree
from app.evidence.log import trees
from app.ledger.tables import AccountedRequestRow, ForgetRequestRow, ForgottenRecordRow
from app.registry.datasets.tables import RecordRow
from app.registry.membership import Membership, membership_at
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database.queries import is_one_of

LineageKey = tuple[str, int]
"""A lineage's model, and the number of its first version."""


class NamedRecord(NamedTuple):
    """A record as one request names it."""

    seq: int
    record_key: bytes | None
    subject_key: bytes | None
    forgotten_epoch: int | None
    sides: dict[str, Any] | None
    request_id: str
    commitment: bytes


def named_by(session: Session, key: LineageKey, request_ids: Collection[str]) -> list[NamedRecord]:
    """Return what requests name that the certificates of a lineage do not account for yet.

    It is ordered by request, in the order of their arrival.
    """
    if not request_ids:
        return []
    return _named(session, is_one_of(ForgetRequestRow.id, request_ids), _is_missing(key))


def named_between(
    session: Session, key: LineageKey, *, dataset_id: str, after: int, through: int
) -> list[NamedRecord]:
    """Do as ``named_by`` does for the requests after an epoch and up to another one.

    Cancelled ones are included.
    """
    request = ForgetRequestRow
    return _named(
        session,
        request.dataset_id == dataset_id,
        request.forget_epoch > after,
        request.forget_epoch <= through,
        _is_missing(key),
    )


def named_of(session: Session, request_id: str) -> list[NamedRecord]:
    """Return what one request names."""
    return _named(session, ForgetRequestRow.id == request_id)


def named_of_lineage(session: Session, key: LineageKey) -> list[NamedRecord]:
    """Return all that the certificates of a lineage account for."""
    return _named(session, _is_there(key, ForgetRequestRow.id))


def _of(key: LineageKey) -> ColumnElement[bool]:
    model_id, since_version = key
    row = AccountedRequestRow
    return and_(row.model_id == model_id, row.since_version == since_version)


def _is_there(key: LineageKey, request_id: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    return exists().where(_of(key), AccountedRequestRow.request_id == request_id)


def _is_missing(key: LineageKey) -> ColumnElement[bool]:
    """Return whether a request is not accounted for, looked up for each request by itself.

    As an anti-join, PostgreSQL might read all that is accounted for.
    """
    number = select(AccountedRequestRow.number).where(
        _of(key), AccountedRequestRow.request_id == ForgetRequestRow.id
    )
    return number.correlate(ForgetRequestRow).scalar_subquery().is_(None)


def _named(session: Session, *conditions: ColumnElement[bool]) -> list[NamedRecord]:
    record, request, named = RecordRow, ForgetRequestRow, ForgottenRecordRow
    query = (
        select(
            *(record.seq, record.record_key, record.subject_key, record.forgotten_epoch),
            *(record.sides, request.id, named.commitment),
        )
        .join(named, named.record_seq == record.seq)
        .join(request, request.id == named.request_id)
        .where(*conditions)
        .order_by(request.forget_epoch, request.id)
    )
    return [NamedRecord._make(row) for row in session.execute(query)]


def records_among(session: Session, key: LineageKey, seqs: Collection[int]) -> set[int]:
    """Return which of the records an accounted request of a lineage names."""
    if not seqs:
        return set()
    numbers = func.unnest(literal(list(seqs), ARRAY(BigInteger)))
    asked = numbers.table_valued("seq", name="asked").render_derived()
    # One is enough: a record may have been named any number of times.
    earlier = (
        select(literal(1).label("one"))
        .where(
            ForgottenRecordRow.record_seq == asked.c.seq,
            _is_there(key, ForgottenRecordRow.request_id),
        )
        .limit(1)
        .lateral()
    )
    return set(session.scalars(select(asked.c.seq).join(earlier, true())))


def last_of(session: Session, key: LineageKey) -> AccountedRequestRow | None:
    """Return the last request of a lineage, with the totals up to it."""
    query = select(AccountedRequestRow).where(_of(key))
    return session.scalar(query.order_by(AccountedRequestRow.number.desc()).limit(1))


def all_of(session: Session, key: LineageKey) -> Sequence[AccountedRequestRow]:
    """Return all requests of a lineage, in the order in which they were accounted for."""
    query = select(AccountedRequestRow).where(_of(key))
    return session.scalars(query.order_by(AccountedRequestRow.number)).all()


def place_of(
    session: Session, key: LineageKey, request_id: str
) -> tuple[AccountedRequestRow | None, AccountedRequestRow | None]:
    """Return a request of a lineage and the one before it; None for one that is not there."""
    mine = AccountedRequestRow.request_id == request_id
    row = session.scalar(select(AccountedRequestRow).where(_of(key), mine))
    if row is None or row.number == 1:
        return row, None
    return row, session.get_one(AccountedRequestRow, (*key, row.number - 1))


def covered_through(session: Session, key: LineageKey) -> int:
    """Return the epoch that the versions of a lineage cover so far, 0 without one."""
    model_id, since_version = key
    query = select(func.max(VersionRow.covers_epoch)).where(
        VersionRow.model_id == model_id, VersionRow.since_version == since_version
    )
    return session.scalar(query) or 0


def count_records(session: Session, request_ids: Collection[str]) -> int:
    """Return how many records the requests name, each counted once."""
    named = ForgottenRecordRow
    mine = is_one_of(named.request_id, request_ids)
    return session.scalar(select(func.count(named.record_seq.distinct())).where(mine)) or 0


def add(session: Session, key: LineageKey, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert requests of a lineage, each with the totals up to it."""
    if not rows:
        return
    model_id, since_version = key
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    types = AccountedRequestRow.__table__.columns
    arrays = [literal(values, ARRAY(types[name].type)) for name, values in columns.items()]
    new = func.unnest(*arrays).table_valued(*columns, name="new").render_derived()
    session.execute(
        insert(AccountedRequestRow).from_select(
            ["model_id", "since_version", *columns],
            select(
                literal(model_id).label("model_id"),
                literal(since_version).label("since_version"),
                *(new.c[name] for name in columns),
            ),
        )
    )


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
        return self.membership.member_of(named)

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
    row, before = place_of(session, key, request_id)
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
        row = last_of(session, lineage.key)
        self.totals = Totals() if row is None else Totals(**{f: getattr(row, f) for f in FIELDS})
        if self.totals.begun_at_epoch != begun_at_epoch:
            before = _before(session, lineage, begun_at_epoch) if begun_at_epoch else 0
            self.totals = replace(
                self.totals, begun_at_epoch=begun_at_epoch, before_training=before
            )
        sizes = (self.totals.covered_size, self.totals.excluded_size)
        stored = trees.frontiers(session, dict(zip(lineage.trees, sizes, strict=True)))
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
        found = named_between(
            self._session,
            lineage.key,
            dataset_id=lineage.dataset_id,
            after=after_epoch,
            through=through_epoch,
        )
        self._add(found)

    def add(self, request_ids: Collection[str]) -> None:
        """Add requests, those apart that are there already."""
        self._add(named_by(self._session, self.lineage.key, request_ids))

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
            records=count_records(self._session, request_ids),
            excluded=_head(self._excluded),
            first=first,
            leaves=leaves,
        )

    def store(self) -> None:
        """Write what was added."""
        trees.add(self._session, self._grown)
        add(self._session, self.lineage.key, self._rows)
        self._grown, self._rows = [], []

    def _add(self, found: Sequence[NamedRecord]) -> None:
        """Add the records of requests, given in the order of the requests."""
        lineage = self.lineage
        found = [named for named in found if named.request_id not in self._added]
        self._added.update(named.request_id for named in found)
        seqs = {named.seq for named in found}
        self._seen |= records_among(self._session, lineage.key, seqs)
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
    found = named_of_lineage(session, lineage.key)
    covered, _ = lineage.split(found)
    return sum(end <= epoch for end in {named.seq: _epoch(named) for named in covered}.values())

"""Which records influenced a model, decided from numbers that never change.

A dataset's records are numbered in upload order, its forget requests in order of arrival (epochs).
A training stores both counts as of when its data were read. This decides for ever which records are
in the lineage that it begins, without a list of records per lineage.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from sqlalchemy import (
    ARRAY,
    Boolean,
    ColumnElement,
    Integer,
    LargeBinary,
    and_,
    func,
    literal,
    or_,
)
from sqlalchemy.sql.elements import Grouping

from app.domain.recipes import TrainingRecipe
from app.domain.states import WeightsSource
from app.registry.datasets.tables import RecordRow
from app.registry.tables import ModelRow

_TWO_TO_64: Final = 2**64
_ARCS: Final = 64
_ARC: Final = _TWO_TO_64 // _ARCS
_PLACE_BYTES: Final = 8


class Numbered(Protocol):
    """A record's number, pseudonyms and epoch; see ``RecordRow``."""

    @property
    def seq(self) -> int:
        """Its number in the order of upload."""

    @property
    def record_key(self) -> bytes:
        """Its pseudonym."""

    @property
    def subject_key(self) -> bytes | None:
        """Its person's, if it names one."""

    @property
    def forgotten_epoch(self) -> int | None:
        """When it was forgotten; None while it is not."""


@dataclass(frozen=True)
class Membership:
    """The training set of one model.

    Attributes:
        through: records numbered above this came later and are not part of the model.
        after_epoch: the epoch when its training data were read. Records forgotten by then were left
            out.
        split_salt: decides whose records are held out for evaluation, and which member's they are.
        held_out_fraction: expected share of held-out records.
        is_imported: its weights were imported. They may depend on every record that the dataset
            held until then, including forgotten and held-out ones.
        stops_early: held-out records decide when training ends, so that the weights depend on them,
            too.
        members: how many networks an ensemble consists of; None for other models.
    """

    through: int
    after_epoch: int
    split_salt: bytes
    held_out_fraction: float
    is_imported: bool
    stops_early: bool = False
    members: int | None = None

    def is_held_out(self, record: Numbered) -> bool:
        """Return whether a record is held out; this depends on nothing but whose it is.

        A record without a subject is a person of its own. Other records of people whom the model
        knows would say little about those whom it does not.
        """
        return self._owner(record.record_key, record.subject_key)[0]

    def holds_out(self, records: Iterable[Numbered]) -> bool:
        """Return whether being held out keeps all of the records from the weights."""
        return not self.stops_early and all(map(self.is_held_out, records))

    def includes(self, record: Numbered) -> bool:
        """Return whether a record is part of the model, for training or evaluation; for ever."""
        gone = record.forgotten_epoch is not None and record.forgotten_epoch <= self.after_epoch
        return record.seq <= self.through and (self.is_imported or not gone)

    def learned_from(self, record: Numbered) -> bool:
        """Return whether a record of the model may have influenced its weights."""
        return self.learns_from_held_out or not self.is_held_out(record)

    def member_of(self, record_key: bytes, subject_key: bytes | None) -> int:
        """Return which member of an ensemble learns from a record, counted from 0.

        All records of a person have the same one, fixed for the lineage. A record without a subject
        is a person of its own.
        """
        return self._owner(record_key, subject_key)[1]

    def includes_in_sql(self) -> ColumnElement[bool]:
        """Return ``includes`` of a row of ``RecordRow``, for PostgreSQL."""
        retained = func.coalesce(RecordRow.forgotten_epoch > self.after_epoch, True)
        return and_(RecordRow.seq <= self.through, or_(literal(self.is_imported), retained))

    def in_sql(self) -> tuple[ColumnElement[bool], ColumnElement[int]]:
        """Return ``is_held_out`` and ``member_of`` of a row of ``RecordRow``, for PostgreSQL.

        Bytes of one length are ordered as the numbers that they stand for.
        """
        starts, owners = _arcs(self.split_salt, self.held_out_fraction, self.members or 1)
        place = func.substr(
            func.coalesce(RecordRow.subject_key, RecordRow.record_key), 1, _PLACE_BYTES
        )
        arc = func.width_bucket(place, literal(starts, ARRAY(LargeBinary)), type_=Integer)
        sides, members = map(list, zip(*owners, strict=True))
        is_held_out = Grouping(literal(sides, ARRAY(Boolean)))
        return is_held_out[arc], Grouping(literal(members, ARRAY(Integer)))[arc]

    def _owner(self, record_key: bytes, subject_key: bytes | None) -> tuple[bool, int]:
        """Return whether a person's records are held out, and whose they are."""
        starts, owners = _arcs(self.split_salt, self.held_out_fraction, self.members or 1)
        key = record_key if subject_key is None else subject_key
        return owners[bisect_right(starts, key[:_PLACE_BYTES]) - 1]

    @property
    def learns_from_held_out(self) -> bool:
        """Whether the weights may depend on held-out records."""
        return self.is_imported or self.stops_early

    def touched_by(self, record: Numbered) -> bool:
        """Return whether a record may have influenced the model's weights."""
        return self.includes(record) and self.learned_from(record)


@lru_cache(maxsize=1024)
def _arcs(
    split_salt: bytes, held_out_fraction: float, members: int
) -> tuple[list[bytes], list[tuple[bool, int]]]:
    """Return where each arc of the pseudonyms begins, ascending, and whose it is, held out or not.

    Pseudonyms are keyed hashes, uniform and independent of everything else. They are cut into equal
    arcs, which the model's salt puts into an order of its own; a first part of that order is held
    out, and each part is divided among the members. So a shard that is sorted by pseudonym has the
    records of a member in a few places.
    """
    limit = math.ceil(held_out_fraction * _TWO_TO_64)
    begins = [
        (start - -member * size // members, (side, member))
        for side, start, size in ((True, 0, limit), (False, limit, _TWO_TO_64 - limit))
        if size
        for member in range(members)
    ]
    at = [begin for begin, _ in begins]
    order = sorted(range(_ARCS), key=lambda arc: hashlib.sha256(split_salt + bytes([arc])).digest())
    arcs = list[tuple[int, tuple[bool, int]]]()
    for rank, arc in enumerate(order):
        low, high = rank * _ARC, (rank + 1) * _ARC
        for place in (low, *(each for each in at if low < each < high)):
            arcs.append((arc * _ARC + place - low, begins[bisect_right(at, place) - 1][1]))
    arcs.sort()
    return [place.to_bytes(_PLACE_BYTES) for place, _ in arcs], [owner for _, owner in arcs]


def batch_digest(membership: Membership, record_key: bytes) -> bytes:
    """Return the number by which a record is ranked; batches are cut from that order."""
    return hashlib.sha256(membership.split_salt + b"batch" + record_key).digest()


def batch_digest_in_sql(membership: Membership) -> ColumnElement[bytes]:
    """Return ``batch_digest`` of a row of ``RecordRow``, for PostgreSQL."""
    return func.sha256(literal(membership.split_salt + b"batch").op("||")(RecordRow.record_key))


def membership_of(model: ModelRow) -> Membership | None:
    """Return the membership of a model's head or imported weights, or None if it has neither."""
    if model.trained_through is None or model.trained_after_epoch is None:
        return None
    return membership_at(
        model, through=model.trained_through, after_epoch=model.trained_after_epoch
    )


def membership_at(model: ModelRow, *, through: int, after_epoch: int) -> Membership:
    """Return what a training of a model reads, or read, up to a record and after an epoch."""
    recipe = TrainingRecipe.from_json(model.recipe)
    return Membership(
        through=through,
        after_epoch=after_epoch,
        split_salt=model.split_salt,
        held_out_fraction=recipe.held_out_fraction,
        is_imported=model.weights_source == WeightsSource.UPLOAD,
        stops_early=recipe.patience is not None,
        members=model.architecture.get("members"),
    )

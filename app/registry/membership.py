"""Which records influenced a model, decided from numbers that never change.

A dataset's records are numbered in upload order, its forget requests in order of arrival (epochs).
A training stores both counts as of when its data were read. This decides for ever which records are
in the lineage that it begins, without a list of records per lineage.
"""

import hashlib
import hmac
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Integer,
    LargeBinary,
    SQLColumnExpression,
    and_,
    func,
    literal,
    or_,
)

from app.domain.recipes import TrainingRecipe
from app.domain.states import WeightsSource
from app.registry.datasets.tables import RecordRow
from app.registry.tables import ModelRow

_TWO_TO_64: Final = 2**64
_BLOCK_BYTES: Final = 64
"""Of SHA-256, to which HMAC fills its key up."""


class Numbered(Protocol):
    """A record's number, pseudonyms and epoch; see ``RecordRow``."""

    @property
    def seq(self) -> int:
        """Its number in the order of upload."""

    @property
    def record_key(self) -> bytes | None:
        """Its pseudonym; None once it is destroyed."""

    @property
    def subject_key(self) -> bytes | None:
        """Its person's, if it names one."""

    @property
    def forgotten_epoch(self) -> int | None:
        """When it was forgotten; None while it is not."""

    @property
    def sides(self) -> Mapping[str, int] | None:
        """What ``Membership.side_of`` was by the models' salts, of destroyed pseudonyms."""


@dataclass(frozen=True)
class Membership:
    """The training set of one model.

    Attributes:
        through: records numbered above this came later and are not part of the model.
        after_epoch: the epoch when its training data were read. Records forgotten by then were left
            out.
        split_salt: decides whose records are held out for evaluation.
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
        key = record.record_key if record.subject_key is None else b"subject" + record.subject_key
        if key is None:
            return self._kept_side(record) < 0
        digest = hashlib.sha256(self.split_salt + key).digest()
        return int.from_bytes(digest[:8]) < self.held_out_fraction * _TWO_TO_64

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

    def member_of(self, record: Numbered) -> int:
        """Return which member of an ensemble learns from a record, counted from 0.

        All records of a person have the same one: it is a keyed hash of their pseudonym, uniform,
        fixed for the lineage and independent of everything else. A record without a subject is a
        person of its own.
        """
        if self.members is None:
            return 0
        own, subject = record.record_key, record.subject_key
        if own is None:
            return max(side := self._kept_side(record), ~side)
        person = b"record" + own if subject is None else b"subject" + subject
        digest = hmac.digest(self.split_salt, b"member" + person, "sha256")
        return int.from_bytes(digest[:8]) * self.members // _TWO_TO_64

    def side_of(self, record: Numbered) -> tuple[str, int]:
        """Return all that the model needs to know of a record's keys, and under which name.

        It is the member that learns from it, or the complement of that if it is held out.
        """
        member = self.member_of(record)
        return self.split_salt.hex(), ~member if self.is_held_out(record) else member

    def _kept_side(self, record: Numbered) -> int:
        return (record.sides or {}).get(self.split_salt.hex(), 0)

    def includes_in_sql(self) -> ColumnElement[bool]:
        """Return ``includes`` of a row of ``RecordRow``, for PostgreSQL."""
        retained = func.coalesce(RecordRow.forgotten_epoch > self.after_epoch, True)
        return and_(RecordRow.seq <= self.through, or_(literal(self.is_imported), retained))

    def in_sql(self) -> tuple[ColumnElement[bool], ColumnElement[int]]:
        """Return ``is_held_out`` and ``member_of`` of a row of ``RecordRow``, for PostgreSQL.

        Bytes of one length are ordered as the numbers that they stand for.
        """
        own, subject = RecordRow.record_key, _joined(b"subject", RecordRow.subject_key)
        side = func.sha256(_joined(self.split_salt, func.coalesce(subject, own)))
        limit = math.ceil(self.held_out_fraction * _TWO_TO_64)
        kept = func.coalesce(RecordRow.sides[self.split_salt.hex()].as_integer(), 0)
        is_held_out = func.coalesce(_first(side) < literal(limit.to_bytes(8)), kept < 0)
        if self.members is None:
            return is_held_out, literal(0)
        person = func.coalesce(subject, _joined(b"record", own))
        inner, outer = (
            bytes(byte ^ pad for byte in self.split_salt.ljust(_BLOCK_BYTES, b"\0"))
            for pad in (0x36, 0x5C)
        )
        digest = func.sha256(_joined(inner + b"member", person))  # HMAC, written out
        digest = func.sha256(_joined(outer, digest))
        starts = [
            (-(-member * _TWO_TO_64 // self.members)).to_bytes(8)
            for member in range(1, self.members)
        ]
        drawn = func.width_bucket(_first(digest), literal(starts, ARRAY(LargeBinary)))
        return is_held_out, func.coalesce(drawn, func.greatest(kept, -1 - kept), type_=Integer)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all that decides which records are in it, and whose."""
        return hashlib.sha256(repr(self).encode()).digest()

    @property
    def learns_from_held_out(self) -> bool:
        """Whether the weights may depend on held-out records."""
        return self.is_imported or self.stops_early

    def touched_by(self, record: Numbered) -> bool:
        """Return whether a record may have influenced the model's weights."""
        return self.includes(record) and self.learned_from(record)


def batch_digest(membership: Membership, record_key: bytes) -> bytes:
    """Return the number by which a record is ranked; batches are cut from that order."""
    return hashlib.sha256(membership.split_salt + b"batch" + record_key).digest()


def batch_digest_in_sql(membership: Membership) -> ColumnElement[bytes]:
    """Return ``batch_digest`` of a row of ``RecordRow``, for PostgreSQL."""
    return func.sha256(_joined(membership.split_salt + b"batch", RecordRow.record_key))


def _joined(first: bytes, second: SQLColumnExpression[Any]) -> ColumnElement[bytes]:
    return literal(first).op("||")(second)


def _first(digest: ColumnElement[bytes]) -> ColumnElement[bytes]:
    return func.substr(digest, 1, 8, type_=LargeBinary)


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

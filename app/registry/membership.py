"""Which records influenced a model, decided from numbers that never change.

A dataset's records are numbered in upload order. Its forget requests, and the restorations after
cancelled ones, are numbered in order of arrival (the epochs of ``app/datasets/lives.py``). A model
stores both counts as of when its training data were read. This decides for ever which records are
in the lineage, without a list of records per model.

A record is part of a model in one of its lives: the one it had at that moment. When that life ends,
the model has to forget the record. A later life counts as a new record uploaded at its start: it is
part of the models trained since.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from app.datasets.lives import Life, life_at
from app.datasets.repository import DatedRecord, KeyedRecord
from app.datasets.tables import RecordRow
from app.domain.recipe import TrainingRecipe
from app.domain.states import WeightsSource
from app.registry.standing import Standing
from app.registry.tables import ModelRow

_TWO_TO_64 = 2**64


@dataclass(frozen=True)
class Membership:
    """The training set of one model.

    Attributes:
        through: records numbered above this came later and are not part of the model.
        after_epoch: the epoch when its training data were read. Records forgotten by then were left
            out; a life that began later is not part of the model.
        split_salt: decides which records are held out for evaluation.
        held_out_fraction: expected share of held-out records.
        is_imported: its weights were imported. They may depend on every record that the dataset
            held until then, including forgotten and held-out ones.
    """

    through: int
    after_epoch: int
    split_salt: bytes
    held_out_fraction: float
    is_imported: bool

    def is_held_out(self, record_key: bytes) -> bool:
        """Return whether a record is held out; this depends on no other record."""
        digest = hashlib.sha256(self.split_salt + record_key).digest()
        return int.from_bytes(digest[:8]) < self.held_out_fraction * _TWO_TO_64

    def life_of(self, record: DatedRecord | KeyedRecord | RecordRow) -> Life | None:
        """Return the life in which a record is part of the model, for training or evaluation.

        None for all other records. Later events can end this life, but not change which one it is.
        """
        if record.seq > self.through:
            return None
        life = life_at(record, self.after_epoch)
        return None if life.forgotten_by(self.after_epoch) and not self.is_imported else life

    def learned_from(self, record_key: bytes) -> bool:
        """Return whether a record of the model may have influenced its weights."""
        return self.is_imported or not self.is_held_out(record_key)

    def touched_by(self, record: RecordRow) -> bool:
        """Return whether a stored record may have influenced the model's weights."""
        return self.life_of(record) is not None and self.learned_from(record.record_key)


def fixed_batches(
    membership: Membership, records: Iterable[tuple[int, bytes]], *, batch_size: int
) -> dict[int, int]:
    """Return the batch of every training record by its sequence number.

    The partition is drawn by a salted hash of the records' keys. It looks at no content and never
    changes, because rows outlive erasure.

    Args:
        membership: the model's.
        records: sequence number and key of all training records, including forgotten ones.
        batch_size: records per batch; the last may have fewer.
    """
    ranked = sorted(
        (hashlib.sha256(membership.split_salt + b"batch" + key).digest(), seq)
        for seq, key in records
    )
    return {seq: rank // batch_size for rank, (_, seq) in enumerate(ranked)}


def membership_of(model: ModelRow | Standing) -> Membership | None:
    """Return a model's membership, or None before its training data were first read."""
    if model.trained_through is None or model.trained_after_epoch is None:
        return None
    return Membership(
        through=model.trained_through,
        after_epoch=model.trained_after_epoch,
        split_salt=model.split_salt,
        held_out_fraction=TrainingRecipe.from_json(model.recipe).held_out_fraction,
        is_imported=model.weights_source == WeightsSource.UPLOAD,
    )

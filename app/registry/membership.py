"""Which records touched a model, decided from numbers that never change.

A dataset's records are numbered in the order of upload, and its forget requests in the order of
receipt. A model remembers how far both counts were when its training data were read. So whether a
record touched the lineage can be told for ever, without a list of every record of every model.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

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
        after_epoch: records forgotten at or before this epoch were left out from the start.
        split_salt: decides which records are held out for evaluation.
        held_out_fraction: expected share of held-out records.
        held_out_is_clean: False where weights came from elsewhere and may have seen every record.
    """

    through: int
    after_epoch: int
    split_salt: bytes
    held_out_fraction: float
    held_out_is_clean: bool

    def is_held_out(self, record_key: bytes) -> bool:
        """Say whether a record is held out; this depends on no other record."""
        digest = hashlib.sha256(self.split_salt + record_key).digest()
        return int.from_bytes(digest[:8]) < self.held_out_fraction * _TWO_TO_64

    def includes(self, *, seq: int, forgotten_epoch: int | None) -> bool:
        """Say whether a record belongs to the model, for training or for evaluation."""
        return seq <= self.through and (
            forgotten_epoch is None or forgotten_epoch > self.after_epoch
        )

    def touched(self, *, seq: int, forgotten_epoch: int | None, record_key: bytes) -> bool:
        """Say whether a record may have influenced the model's weights."""
        if not self.includes(seq=seq, forgotten_epoch=forgotten_epoch):
            return False
        return not self.held_out_is_clean or not self.is_held_out(record_key)

    def touched_by(self, record: RecordRow) -> bool:
        """Say whether a stored record may have influenced the model's weights."""
        return self.touched(
            seq=record.seq,
            forgotten_epoch=record.forgotten_epoch,
            record_key=record.record_key,
        )


def fixed_batches(
    membership: Membership, records: Iterable[tuple[int, bytes]], *, batch_size: int
) -> dict[int, int]:
    """Return the batch of every training record by its sequence number.

    A partition drawn by a salted hash of the records' keys: it looks at no content and, because
    rows outlive erasure, comes out the same for the model's life.

    Args:
        membership: the model's.
        records: sequence number and key of all that the model is trained on, forgotten ones too.
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
        held_out_is_clean=model.weights_source == WeightsSource.TRAIN,
    )

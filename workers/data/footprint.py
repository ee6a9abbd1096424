"""What a run needs in memory, known before it reads a record.

Whether records are streamed, and in windows of how many, decides which batches a noisy phase takes.
So both follow from the records that are not forgotten and from public sizes alone: neither from
shards, nor from forgotten records that they still hold (docs/guarantees.md, section 1).
"""

from dataclasses import dataclass
from typing import Final

from app.domain.plan import Plan, TrainingKind
from app.domain.schema import InputSchema
from app.planning.mechanisms.catalogue import mechanism_of
from app.planning.mechanisms.sufficient_statistics import SufficientStatistics
from app.registry.datasets.repository import Stock
from workers.data.memory import Needs
from workers.training.evaluate import EVALUATION_BATCH

_BYTES_PER_WEIGHT: Final = 48
"""Parameters, gradients and moments, their best values, a float64 position with its noise, and the
file that is published; descent has fewer of them and float64."""
_BYTES_DIVIDED: Final = 40
"""How many of them are divided among processes: all but a network as it is built or published, and
the file that it starts from."""
_BYTES_PER_ENTRY: Final = 256
"""A record's number, key, batch and places, while they are chosen from the ledger."""
_BYTES_PER_PREDICTION: Final = 64
_COPIES: Final = 3
"""Of records in memory: shards as they were read, those chosen of them, and what reading took."""
_FLOAT64: Final = 8
_SHARD: Final = "one shard"
_MOMENTS: Final = 4
_LEAST_BATCHES: Final = 4
_WINDOW_SHARE: Final = 6
"""Each of two windows takes this part of the allowance."""


@dataclass(frozen=True)
class Footprint:
    """What decides how much memory a run needs.

    Attributes:
        plan: what the run does.
        schema: of what its network reads.
        record_bytes: of one record's tensors.
        dimension: how many weights are trained.
        batch_size: of the steps.
        stock: what the dataset holds, forgotten records included.
        remembered: how many of its records are not forgotten.
        devices: how many divide the weights; what is needed is what each of them needs at most.
    """

    plan: Plan
    schema: InputSchema
    record_bytes: int
    dimension: int
    batch_size: int
    stock: Stock
    remembered: int
    devices: int = 1

    @property
    def sums(self) -> bool:
        """Whether all that is needed of records to learn from is their sums."""
        return isinstance(mechanism_of(self.plan), SufficientStatistics)

    def in_memory(self) -> Needs:
        """Return what a run needs that holds all records."""
        rows = self.stock.rows
        return Needs({**self._always(rows, evaluated=rows), "records": self._records(rows)})

    def of_member(self, rows: int, *, measured: int) -> Needs:
        """Return what a run needs of an ensemble whose largest member has so many records.

        Those to be measured on are in memory besides.
        """
        return Needs(
            {
                **self._always(self.stock.rows, evaluated=measured),
                "records": self._records(rows),
                "records to evaluate on": measured * self.record_bytes,
            }
        )

    def fits(self, allowed: int) -> bool:
        """Return whether to hold all records: three quarters of the allowance must do.

        The rest is for what does not decide it: a shard while it is read, and forgotten records.
        """
        rows = self.remembered
        always = self._always(rows, evaluated=rows) | {_SHARD: 0}
        return sum(always.values()) + self._records(rows) <= allowed // 4 * 3

    def streamed(self, *, held: int, evaluated: int) -> Needs:
        """Return what a run needs that reads records as it needs them, without its windows.

        Args:
            held: bytes of records that stay in memory.
            evaluated: records to evaluate on.
        """
        always = self._always(self.stock.rows, evaluated=evaluated)
        return Needs({**always, "records to evaluate on": held})

    def least_window(self) -> int:
        """Return how many records a window has at least: a few batches' worth."""
        return min(self.remembered, _LEAST_BATCHES * max(2, self.batch_size))

    def window(self, allowed: int) -> int:
        """Return how many records a window has."""
        return max(self.least_window(), allowed // _WINDOW_SHARE // self.record_bytes)

    def windows(self, allowed: int) -> int:
        """Return the bytes of two windows, one in use and one that is being read."""
        return 2 * min(self.remembered, self.window(allowed)) * self.record_bytes

    def _records(self, rows: int) -> int:
        if self.sums:
            return rows * self.record_bytes
        copies = _COPIES + (self.plan.training is TrainingKind.DESCENT)  # one in batches' order
        return copies * rows * self.record_bytes

    def _always(self, rows: int, *, evaluated: int) -> dict[str, int]:
        stock = self.stock
        of_prediction = _BYTES_PER_PREDICTION + _FLOAT64 * self.schema.classes
        exact = self.plan.training is TrainingKind.EXACT
        size = self.schema.size
        batch = min(rows, max(self.batch_size, EVALUATION_BATCH))
        whole = (_BYTES_PER_WEIGHT - _BYTES_DIVIDED) * self.dimension
        return {
            "weights": whole + -(-_BYTES_DIVIDED * self.dimension // self.devices),
            "the ledger's entries": _BYTES_PER_ENTRY * rows,
            _SHARD: 2 * (stock.most_bytes + stock.most_rows * self.record_bytes),
            "a batch": batch * (self.record_bytes + _FLOAT64 * size),
            "predictions": of_prediction * evaluated,
            "sums": _MOMENTS * _FLOAT64 * size * size if self.sums else 0,
            "all features in float64": _FLOAT64 * (size + 2) * rows
            if exact and not self.sums
            else 0,
        }

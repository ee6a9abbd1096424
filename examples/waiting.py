"""How long somebody waits: minutes, by the absolute error of their logarithm."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor, nn

import expunge

Arrays = dict[str, np.ndarray[Any, Any]]
Tensors = dict[str, Tensor]


class Waiting:
    """A task of one's own."""

    headline = "within_a_quarter"

    def __init__(self, *, longest: float) -> None:
        self.longest = longest

    def sample(self, count: int) -> pa.Table:
        """Return made-up rows."""
        return pa.table({"people": np.arange(count), "minutes": 1.0 + np.arange(count)})

    def encode(self, rows: pa.Table) -> Arrays:
        """Return what the network reads."""
        people = np.log1p(rows["people"].to_numpy())
        return {"inputs": people[:, None].astype(np.float32)}

    def encode_target(self, rows: pa.Table) -> Arrays:
        """Return what it is to say."""
        minutes = rows["minutes"].to_numpy()
        faulty = np.flatnonzero((minutes <= 0) | (minutes > self.longest))
        if len(faulty):
            raise expunge.UnreadableRecordsError("minutes", faulty.tolist())
        return {"logarithm": np.log(minutes).astype(np.float32)}

    def loss(self, module: nn.Module, batch: Tensors) -> Tensor:
        """Return the loss of each record."""
        return (module(batch["inputs"])[:, 0] - batch["logarithm"]).abs()

    def predict(self, module: nn.Module, batch: Tensors) -> Tensors:
        """Return minutes."""
        return {"minutes": module(batch["inputs"])[:, 0].exp()}

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return how many predictions are about right."""
        ratio = predictions["minutes"] / np.exp(batch["logarithm"])
        return {"within_a_quarter": float(((ratio > 0.8) & (ratio < 1.25)).mean())}


if __name__ == "__main__":
    dice = np.random.default_rng(2)
    people = dice.integers(0, 60, 1000)
    minutes = (2 + people) * dice.uniform(0.9, 1.1, 1000)
    table = {"visit": [f"v-{i}" for i in range(1000)], "people": people, "minutes": minutes}
    pq.write_table(pa.table(table), "visits.parquet")
    pq.write_table(pa.table({"people": [0, 10, 30]}), "tomorrow.parquet")

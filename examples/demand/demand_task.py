"""How many bikes are rented an hour: Poisson's loss, weighed by how long somebody has counted."""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import torch

import expunge

Batch = dict[str, torch.Tensor]


class Counts:
    """A task of one's own: docs/how-to/own-task.md explains each method."""

    headline = "deviance_explained"

    def __init__(self, *, longest: float = 12.0) -> None:
        self.longest = longest

    def sample(self, count: int) -> pa.Table:
        """Return made-up rows, on which the task is tried before records are read."""
        ones = np.linspace(0.1, 1, count)
        columns = {"warmth": 20 * ones, "rain": ones, "central": ones, "hours": 6 * ones}
        return pa.table(columns | {"rented": np.arange(count)})

    def encode(self, rows: pa.Table) -> dict[str, np.ndarray]:
        """Return arrays [n, …] by name; row i is of record i alone."""
        known = np.stack([rows[name].to_numpy() for name in ("warmth", "rain", "central")], axis=1)
        return {"inputs": (known / [30, 5, 1]).astype(np.float32)}

    def encode_target(self, rows: pa.Table) -> dict[str, np.ndarray]:
        """Return more arrays, of what is known in training alone."""
        hours = rows["hours"].to_numpy()
        faulty = np.flatnonzero((hours <= 0) | (hours > self.longest))
        if len(faulty):
            raise expunge.UnreadableRecordsError("hours", faulty.tolist())
        rate = rows["rented"].to_numpy() / hours
        return {"rate": rate.astype(np.float32), "hours": hours.astype(np.float32)}

    def loss(self, module: Callable[..., torch.Tensor], batch: Batch) -> torch.Tensor:
        """Return one loss for each record, [n]: Poisson's, times the hours."""
        logarithm = module(batch["inputs"])[:, 0]
        return batch["hours"] * (logarithm.exp() - batch["rate"] * logarithm)

    def predict(self, module: Callable[..., torch.Tensor], batch: Batch) -> Batch:
        """Return what users want to know of each record."""
        return {"rented_an_hour": module(batch["inputs"])[:, 0].exp()}

    def metrics(
        self, predictions: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Return figures of the held-out records."""
        rate, hours = batch["rate"], batch["hours"]
        found = _deviance(predictions["rented_an_hour"], rate, hours)
        mean = np.full_like(rate, (rate * hours).sum() / hours.sum())
        return {"deviance": found, "deviance_explained": 1 - found / _deviance(mean, rate, hours)}


def _deviance(predicted: np.ndarray, rate: np.ndarray, hours: np.ndarray) -> float:
    ratio = np.where(rate > 0, rate, 1) / predicted
    apart = np.where(rate > 0, rate * np.log(ratio), 0) - (rate - predicted)
    return float(2 * (hours * apart).sum() / hours.sum())

"""A task of the operator's own."""

import numpy as np
import pyarrow as pa

from app.domain.errors import UnreadableRecordsError


class Rents:
    """What a shop's rent is, by the absolute error."""

    headline = "median_error"

    def __init__(self, *, unit=1000.0):
        self.unit = unit

    def sample(self, count):
        return pa.table(
            {
                "area": pa.array([1.0] * count, pa.float32()),
                "rent": [900.0 + i for i in range(count)],
            }
        )

    def encode(self, rows):
        area = rows["area"].to_numpy().astype(np.float32)
        if (bad := np.flatnonzero(area < 0)).size:
            raise UnreadableRecordsError("area", bad.tolist())
        return {"inputs": area[:, None] / 50}

    def encode_target(self, rows):
        rent = rows["rent"].to_numpy()
        if (bad := np.flatnonzero(rent > 10_000)).size:
            raise UnreadableRecordsError("rent", bad.tolist())
        return {"rent": (rent / self.unit).astype(np.float32)}

    def loss(self, module, batch):
        return (module(batch["inputs"])[:, 0] - batch["rent"]).abs()

    def predict(self, module, batch):
        return {"rent": module(batch["inputs"])[:, 0] * self.unit}

    def metrics(self, predictions, batch):
        return {
            "median_error": float(np.median(abs(predictions["rent"] / self.unit - batch["rent"])))
        }


OWN = {
    "name": "custom",
    "path": "operators_networks:Rents",
    "columns": ["area"],
    "target": {"columns": ["rent"]},
    "inputs": {"shape": [1]},
    "outputs": 1,
    "options": {"unit": 500.0},
}

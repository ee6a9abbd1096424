"""Write how many bikes invented stations rented out: ``python examples/demand/data.py FILE``."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 4000

if __name__ == "__main__":
    dice = np.random.default_rng(11)
    warmth, rain = dice.uniform(-5, 35, ROWS), dice.exponential(2, ROWS)
    central, hours = dice.random(ROWS), dice.uniform(0.5, 6, ROWS)
    per_hour = np.exp(0.5 + 0.05 * warmth - 0.25 * np.minimum(rain, 8) + 1.2 * central)
    table = {
        "visit": [f"v-{row}" for row in range(ROWS)],
        "counted_by": [f"helper {row // 8}" for row in range(ROWS)],
        "warmth": warmth.round(1),
        "rain": rain.round(1),
        "central": central.round(3),
        "hours": hours.round(2),
        "rented": dice.poisson(per_hour * hours),
    }
    pq.write_table(pa.table(table), sys.argv[1])

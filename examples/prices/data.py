"""Write invented houses, some with absurd prices: ``python examples/prices/data.py FILE``."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 3000
DISTRICTS = ("centre", "harbour", "hills", "south")

if __name__ == "__main__":
    dice = np.random.default_rng(7)
    area = dice.uniform(30, 250, ROWS).round()
    rooms = np.clip((area / 28 + dice.normal(0, 0.8, ROWS)).round(), 1, 10).astype(int)
    built = dice.integers(1900, 2026, ROWS)
    district = dice.integers(0, 4, ROWS)
    price = 40_000 + 2_400 * area + 9_000 * rooms + 500 * (built - 1960) - 45_000 * district
    price = price + dice.normal(0, 15_000, ROWS)
    mistaken = dice.random(ROWS) < 0.02  # somebody has typed another digit
    price[mistaken] *= 3
    table = {
        "house": [f"h-{row}" for row in range(ROWS)],
        "owner": [f"owner {row // 6}" for row in range(ROWS)],
        "area": area,
        "rooms": rooms,
        "built": built,
        "district": [DISTRICTS[each] for each in district],
        "price": price.round(),
    }
    pq.write_table(pa.table(table), sys.argv[1])

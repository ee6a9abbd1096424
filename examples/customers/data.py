"""Write invented customers, six contracts each: ``python examples/customers/data.py FILE``."""

import math
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq

PLANS = {"basic": 15.0, "plus": 35.0, "premium": 60.0}
ROWS = 3000


def contract(row: int, dice: random.Random) -> dict[str, object]:
    """Return one contract: whoever calls often and pays much leaves."""
    age, plan = dice.randint(18, 90), dice.choice(list(PLANS))
    fee, calls = PLANS[plan] + dice.uniform(-5, 25), min(int(dice.expovariate(0.5)), 12)
    odds = -3.0 + 0.9 * calls + 0.05 * (fee - 40) - 0.03 * (age - 50) + (plan == "basic")
    return {
        "contract": f"c-{row}",
        "customer": f"customer {row // 6}",
        "age": None if dice.random() < 0.04 else age,
        "plan": plan,
        "fee": round(fee, 2),
        "calls": calls,
        "churned": dice.random() < 1 / (1 + math.exp(-2 * odds)),
    }


if __name__ == "__main__":
    dice = random.Random(15)
    rows = [contract(row, dice) for row in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows), sys.argv[1])

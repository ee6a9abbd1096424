"""Write invented customers as pandas writes a table: ``python examples/churn.py FILE ROWS``.

An unnamed index, text, dates, booleans, and numbers with missing ones. A longer table begins with
the rows of a shorter one.
"""

import csv
import math
import random
import sys
from pathlib import Path

FIRST = ("Zoë", "José", "Łucja", "Søren", "Anaïs", "Jürgen", "Siân", "Chloé", "Nuño", "Ada")
LAST = ("Müller", "Núñez", "Wójcik", "Ångström", "Lefèvre", "Öztürk", "O'Neill", "Silva")
HEADER = ("", "customer", "signup", "age", "plan", "region", "fee", "calls", "paperless", "churned")
PLANS = {"basic": 15.0, "plus": 35.0, "premium": 60.0}
REGIONS = ("north", "south", "east", "west")


def customer(row: int, dice: random.Random) -> list[object]:
    """Return one contract's row; each person has two contracts."""
    person = row // 2
    name = f"{FIRST[person % 10]} {LAST[person // 10 % 8]} {person}"
    age = float(dice.randint(18, 90))
    plan = dice.choice(list(PLANS))
    fee = round(PLANS[plan] + dice.uniform(-5, 25), 2)
    calls = min(int(dice.expovariate(0.5)), 12)
    paperless = dice.random() < 0.6
    odds = -3.0 + 0.9 * calls + 0.05 * (fee - 40) - 0.03 * (age - 50) + (plan == "basic")
    churned = dice.random() < 1 / (1 + math.exp(-2 * odds))
    return [
        row,
        name,
        f"20{dice.randint(15, 25)}-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}",
        "" if dice.random() < 0.04 else age,
        plan,
        "" if dice.random() < 0.02 else dice.choice(REGIONS),
        fee,
        calls,
        paperless,
        "yes" if churned else "no",
    ]


if __name__ == "__main__":
    dice = random.Random(15)
    with Path(sys.argv[1]).open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEADER)
        table.writerows(customer(row, dice) for row in range(int(sys.argv[2])))

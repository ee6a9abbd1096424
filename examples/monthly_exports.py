"""Write three months of customers as pandas would: an index, names, dates, missing values."""

import csv
import random
from pathlib import Path

HEADER = ["", "customer", "since", "age", "plan", "churned"]


def write(name: str, header: list[str], rows: list[list[object]]) -> None:
    """Write a file of rows."""
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


random.seed(1)
rows: list[list[object]] = [
    [
        i,
        f"Zoë {i // 2}",
        f"2026-01-{1 + i % 28:02}",
        random.choice(["", *range(18, 90)]),
        random.choice(["basic", "plus"]),
        random.choice(["yes", "no"]),
    ]
    for i in range(600)
]
rows[7][4] = "staff"
write("customers.csv", HEADER, rows)
rows[3][3] = 50
rows += [[i, f"Li {i}", "2026-02-01", 40, "plus", "no"] for i in range(600, 650)]
write("customers-february.csv", HEADER, rows)
rows = [[i, f"Mo {i}", "2026-03-01", 40.5, "team", "no", 12] for i in range(650, 680)]
write("customers-march.csv", [*HEADER, "tenure"], rows)

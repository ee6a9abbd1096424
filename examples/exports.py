"""Write three files of members, the last with a row that cannot be read."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

folder = Path("exports/2026")
folder.mkdir(parents=True, exist_ok=True)
for month in range(1, 4):
    numbers = range(month * 1000, month * 1000 + 1000)
    ages = [str(20 + i % 50) for i in numbers]
    if month == 3 and "mended" not in sys.argv:
        ages[17] = "unknown"
    table = {
        "member": [f"m-{i}" for i in numbers],
        "person": [f"p-{i // 2}" for i in numbers],
        "age": ages,
    }
    pq.write_table(pa.table(table), folder / f"{month:02}.parquet")

"""The memory of ``expunge dataset push`` does not grow with the table."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.service import running

_ROWS, _COLUMNS = 300_000, 100
_MOST_BYTES = 500_000_000
_REPOSITORY = Path(__file__).parents[2]
_PUSH = """
import atexit, re, sys
from pathlib import Path
from app.cli.main import main
peak = lambda: re.search("VmHWM:\\s+([0-9]+)", Path("/proc/self/status").read_text())[1]
atexit.register(lambda: print(peak(), file=sys.stderr))
main()
"""
"""The command, which tells the largest memory of its own process, not that of the test's."""


@pytest.mark.slow
def test_a_large_table_is_pushed_in_little_memory(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    columns = {
        f"x{place}": numbers.standard_normal(_ROWS).astype(np.float32) for place in range(_COLUMNS)
    }
    # In one row group, whose columns are all read side by side.
    pq.write_table(pa.table({"record_id": np.arange(_ROWS), **columns}), tmp_path / "wide.parquet")
    del columns
    with running(tmp_path / "data") as service:
        command = [sys.executable, "-c", _PUSH, "dataset", "push", "wide", "wide.parquet"]
        environment = service.environment() | {"PYTHONPATH": str(_REPOSITORY)}
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert service.client().dataset("wide")["records"] == _ROWS
    assert int(done.stderr.split()[-1]) * 1024 < _MOST_BYTES

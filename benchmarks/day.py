"""A day of forget requests, beside a ``python -m benchmarks.day``.

Three models learn from one dataset: a softmax head, an ensemble of 16 networks, and a network.
People ask to be forgotten, one after the other. The service, with two workers, ends each request
with three certificates. The script does what a team without it would: it reads the Parquet file,
drops whoever asked, and trains the three models with the same recipes.
"""

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet

from benchmarks import harness, scale

_SCRIPTED: Final = 5


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what was measured once the script is done, and again after the service."""
    os.environ["OMP_NUM_THREADS"] = "1"  # each worker has one of two cores
    document: dict[str, Any] = {"cores": os.cpu_count(), "records": given.size}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.parquet"
        tables = list(scale.tables(given.size, given.features))
        pyarrow.parquet.write_table(pyarrow.concat_tables(tables), path)
        asked, script = list[float](), [sys.executable, "-m", "benchmarks.train_anew"]
        for person in range(_SCRIPTED):
            people = [f"person-{each}" for each in range(person + 1)]
            train = [*script, str(path), *people]
            two = os.environ | {"OMP_NUM_THREADS": "2"}  # it is alone on both cores
            anew = partial(subprocess.run, train, env=two, check=True)
            seconds, _ = harness.seconds_of(anew)
            asked.append(seconds)
        document["script_s"] = asked
        yield document
    with scale.serving() as client:
        scale.push(client, given.size, given.features)
        people = iter(np.random.default_rng(1).permutation(given.size // 2).tolist())
        with scale.trained(client, "together", scale.TOGETHER, given.features):
            began = time.monotonic()
            found = [
                scale.forgotten(client, people, scale.TOGETHER)["completed_s"]
                for _ in range(given.requests)
            ]
            document["service_s"] = time.monotonic() - began
            document["requests_s"] = sorted(found)
            yield document


def table(document: dict[str, Any]) -> str:
    """Return what one request takes, and a day of a hundred."""
    script = harness.mean_and_error(document["script_s"])[0]
    rows = [("script that trains anew", f"{script:.1f}", f"{100 * script / 60:.1f}", "no")]
    if found := document.get("requests_s"):
        middle, day = found[len(found) // 2], 100 * document["service_s"] / len(found) / 60
        rows.append(("the service", f"{middle:.1f}", f"{day:.1f}", "three a request"))
    return harness.table("| a request, s | a hundred, min | certificates", rows)


def figure(document: dict[str, Any], path: Path) -> None:
    """Draw the minutes that a day's requests take by their number."""
    number = np.arange(101)
    with harness.picture(path, (7, 4)) as (_, ((axis,),)):
        script = harness.mean_and_error(document["script_s"])[0]
        axis.plot(number, number * script / 60, label="a script that trains anew")
        each = document["service_s"] / len(document["requests_s"])
        axis.plot(number, number * each / 60, label="the service, with certificates")
        axis.set(xlabel="requests of one person each", ylabel="minutes")
        axis.legend(fontsize=9)


if __name__ == "__main__":
    options: dict[str, dict[str, Any]] = {
        "--size": {"type": int, "default": 500_000},
        "--features": {"type": int, "default": 100},
        "--requests": {"type": int, "default": 100},
    }
    harness.main("day", __doc__, run, options=options, table=table, figure=figure)

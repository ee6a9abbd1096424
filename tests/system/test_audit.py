"""``expunge audit`` as an auditor runs it, interrupted and to its end, against a whole service.

Then a search of every place for the contents and ids of its canaries.
"""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.cli.waiting import INTERRUPTED
from benchmarks.audits_cases import MODELS, rows
from tests.support.digits import DATASET, TASK, digits_parquet
from tests.support.markers import Marker, search_bytes
from tests.support.patience import PATIENCE_S, until
from tests.support.service import Service, running
from tests.support.traces import Traces

CANARIES = 60
# The command itself, which also writes down the ids of its canaries.
COMMAND = """
import sys
from app.cli.main import main
from workers.audit import auditing

def prepare(*given, by=auditing.prepare):
    canaries = by(*given)
    with open("ids", "a") as ids:
        print(*canaries.ids, sep="\\n", file=ids)
    return canaries

auditing.prepare = prepare
sys.argv[0] = "expunge"
main()
"""


@pytest.fixture
def service(tmp_path):
    with running(tmp_path / "data") as service:
        with service.client() as client:
            client.define_dataset(**DATASET)
            client.push_records("digits", digits_parquet(40))
            audited = {"name": "digits", "dataset": "digits", "task": TASK}
            client.define_model(audited | MODELS["ridge head"])
            client.wait_for_model("digits", timeout_s=PATIENCE_S)
        yield service


def _begin(service: Service, directory: Path, name: str) -> subprocess.Popen[bytes]:
    """Begin an audit in a directory of the auditor's, of images that nobody else has."""
    with service.client() as client:
        (directory / "trusted-keys.json").write_bytes(client.trusted_keys())
        key = client.http.post("/v1/api-keys", json={"name": name, "scopes": ["audit"]}).json()
    environment = service.environment() | {
        "EXPUNGE_API_URL": service.url,
        "EXPUNGE_API_KEY": key["secret"],
        "EXPUNGE_DATA_DIR": str(directory),
        "TMPDIR": str(directory),
    }
    options = f"--data own.parquet --canaries {CANARIES} --confidence 0.9999 --name {name}"
    command = ["audit", "digits", "--trusted", "trusted-keys.json", *options.split()]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *command], cwd=directory, env=environment
    )


def _written(directory: Path) -> list[Marker]:
    """Write the auditor's images; return how each could be recognised."""
    directory.mkdir()
    images = np.random.default_rng().integers(256, size=(400, 64), dtype=np.uint8)
    own = pa.FixedSizeListArray.from_arrays(images.reshape(-1), 64)
    pq.write_table(rows().set_column(0, "features", own), directory / "own.parquet")
    return [Marker(f"image {place}", bytes(each)) for place, each in enumerate(images)]


def test_no_canary_is_left_by_an_audit_nor_by_an_interrupted_one(service, tmp_path) -> None:
    traces = Traces(service)
    traces.gone += _written(tmp_path / "auditor")
    service.points.arm("after_load", "pass", "SIGSTOP")  # the reference's training goes on
    audit = _begin(service, tmp_path / "auditor", "interrupted")
    (worker,) = service.frozen()
    assert search_bytes(traces.opened(), traces.gone)
    audit.send_signal(signal.SIGINT)
    assert audit.wait(PATIENCE_S) == INTERRUPTED
    worker.resume()
    with service.client() as client:
        for left in ("datasets/interrupted", "models/interrupted", "models/interrupted-reference"):
            assert client.http.get(f"/v1/{left}").json()["archived_at"], left

    assert _begin(service, tmp_path / "auditor", "whole").wait(PATIENCE_S) == 0
    ids = (tmp_path / "auditor" / "ids").read_text().split()
    assert len(ids) == 2 * CANARIES
    traces.gone += [Marker("an id", each.encode()) for each in ids]
    until(lambda: search_bytes(traces.opened(), traces.gone) == [])
    traces.assert_none_at_all()

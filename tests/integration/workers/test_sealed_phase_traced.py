"""The kernel's view of the sealed phase: Postgres hears of progress, and no file of anything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from app.ledger.tables import RunRow
from app.runtime.locations import redis_connection
from tests.support.collector import Collector
from tests.support.digits import DATASET, RECIPE, digits_parquet, model
from tests.support.patience import PATIENCE_S
from tests.support.s3 import ACCESS, S3Server
from tests.support.slow import FACTORY
from tests.support.strace import sealed_phases, traced, why_unavailable
from tests.support.streamed import TASK, footprint, push_wide, too_little
from tests.support.workshop import Workshop
from workers.data.memory import VARIABLE
from workers.dispatcher import Dispatcher
from workers.queue import open_queue

REPOSITORY = Path(__file__).parents[3]
RUN = """
import sys
from workers import jobs
from app.runtime.processes.hardening import harden
harden()
jobs.execute_run(sys.argv[1])
"""
PHASE_THAT_WRITES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
os.close(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY))
with open(sys.argv[2], "r+b", buffering=0) as file:
    try:
        file.write(b"a weight")
    except OSError:
        pass
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
"""
# The first one is sealed and writes from a thread, while the other one writes, too.
TWO_PROCESSES = """
import os, resource, sys, threading
def write(path):
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
hear, tell = os.pipe()
child = os.fork()
if child == 0:
    os.read(hear, 1)
    write(sys.argv[2])
    os._exit(0)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
writing = threading.Thread(target=write, args=[sys.argv[1]])
writing.start()
writing.join()
os.write(tell, b"1")
os.waitpid(child, 0)
"""


@pytest.fixture(autouse=True)
def _strace():
    if reason := why_unavailable():
        pytest.skip(reason)


@pytest.fixture
def bucket(monkeypatch):
    """A real S3 server, where the service keeps its objects; ask for it before the service."""
    server = S3Server()
    for name, value in {
        "BUCKET": server.bucket,
        "ENDPOINT": server.endpoint,
        "REGION": ACCESS["region"],
        "ACCESS_KEY": ACCESS["access_key"],
        "SECRET_KEY": ACCESS["secret_key"],
    }.items():
        monkeypatch.setenv(f"EXPUNGE_S3_{name}", value)
    yield server
    server.stop()


@pytest.fixture
def run_id(api, services):
    """A run that trains for a second or so, waiting for a worker."""
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())
    slow = {
        **model(parameters={"steps": 60}, budget_epochs=80),
        "architecture": {"name": "custom", "factory": FACTORY},
        "recipe": {**RECIPE, "batch_size": 1000, "epochs": 60},
    }
    assert api.post("/v1/models", json=slow).status_code == 201
    Dispatcher(services, open_queue(redis_connection(services.settings))).tick()
    with services.database.transaction() as session:
        return session.scalars(select(RunRow.id)).one()


@pytest.fixture
def streamed_run(services):
    """A run whose records do not fit into what its worker may use; and the environment for that."""
    workshop = Workshop(services)
    push_wide(services)
    recipe = {"epochs": 4, "batch_size": 16, "held_out_fraction": 0.2}
    workshop.define(
        dataset="wide",
        task=TASK,
        architecture="logistic",
        recipe=recipe,
        parameters={"steps": 400},
        budget_epochs=8,
    )
    allowed = too_little(footprint(services))
    return workshop.active_run(), {VARIABLE: str(allowed)}


def trace(tmp_path, program, *arguments, **environment):
    output = tmp_path / "trace"
    ended = subprocess.run(
        traced(output, [sys.executable, "-c", program, *map(str, arguments)]),
        cwd=REPOSITORY,
        env={
            **os.environ,
            "EXPUNGE_ALLOWED_FACTORIES": json.dumps([FACTORY]),
            **environment,
        },
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return sealed_phases(output)


@pytest.mark.slow  # a run under strace
def test_a_sealed_phase_writes_to_postgres_and_to_nothing_else(services, run_id, tmp_path):
    with Collector() as collector:
        phases = trace(tmp_path, RUN, run_id, **collector.environment)
        assert collector.named("training")
    with services.database.transaction() as session:
        run = session.get_one(RunRow, run_id)
        assert run.state == "published", run.failure_reason
    (phase,) = phases
    assert phase.opened_to_write == []
    assert len(phase.written) > 3
    assert {Path(target).name for target in phase.written} == {".s.PGSQL.5432"}


@pytest.mark.nightly  # a run under strace
@pytest.mark.parametrize("devices", [2, 3])
def test_no_process_of_a_divided_run_writes_a_file_while_it_is_sealed(
    services, run_id, tmp_path, devices
):
    phases = trace(tmp_path, RUN, run_id, EXPUNGE_DEVICES=str(devices))
    with services.database.transaction() as session:
        run = session.get_one(RunRow, run_id)
        assert run.state == "published", run.failure_reason
    assert len(phases) == devices
    for phase in phases:
        assert phase.opened_to_write == []
        others = [target for target in phase.written if "->127.0.0.1:" not in target]
        assert len(phase.written) - len(others) > 3
        assert {Path(target).name for target in others} <= {".s.PGSQL.5432"}


def traced_run(services, tmp_path, run_id, environment):
    (phase,) = trace(tmp_path, RUN, run_id, **environment)
    with services.database.transaction() as session:
        run = session.get_one(RunRow, run_id)
        assert run.state == "published", run.failure_reason
    assert phase.opened_to_write == []
    return phase


@pytest.mark.nightly  # a run under strace
def test_a_streamed_run_reads_records_in_its_sealed_phase_and_writes_no_file(
    services, streamed_run, tmp_path
):
    phase = traced_run(services, tmp_path, *streamed_run)
    assert {Path(target).name for target in phase.written} == {".s.PGSQL.5432"}
    assert len(phase.written) > 100  # it asks for each shard where it is now


@pytest.mark.slow  # a run under strace
def test_a_streamed_run_writes_to_its_object_store_nothing_but_what_it_asks_for(
    bucket, services, streamed_run, tmp_path
):
    phase = traced_run(services, tmp_path, *streamed_run)
    store = f"->127.0.0.1:{bucket.port}]>"
    sent = [target for target in phase.written if target.endswith(store)]
    assert sent
    others = {Path(target).name for target in phase.written if target not in sent}
    assert others == {".s.PGSQL.5432"}


def test_the_trace_tells_processes_apart(tmp_path):
    (phase,) = trace(tmp_path, TWO_PROCESSES, tmp_path / "sealed", tmp_path / "other")
    assert [part for part in phase.opened_to_write if "/sealed" in part]
    assert not [part for part in phase.opened_to_write if "/other" in part]


def test_the_trace_would_show_a_file(tmp_path):
    (tmp_path / "old").write_bytes(b"")
    (phase,) = trace(tmp_path, PHASE_THAT_WRITES, tmp_path / "new", tmp_path / "old")
    assert [part for part in phase.opened_to_write if "/new" in part]
    assert any(str(tmp_path / "old") in target for target in phase.written)

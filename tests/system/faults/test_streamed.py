"""A worker killed while it streams a run's records: nothing is lost, nothing counts twice."""

import numpy as np
import pytest

from tests.support.arrays import array_schema
from tests.support.facts import (
    assert_ledger_in_order,
    assert_only_the_head_is_served,
    await_completed,
    only_what_is_current_is_stored,
)
from tests.support.markers import Marker, files_below, search_files
from tests.support.patience import PATIENCE_S, until
from tests.support.service import kill, running
from tests.support.slow import FACTORY
from tests.support.streamed import FEATURES, RECORDS, TASK, wide_parquet

pytestmark = pytest.mark.nightly

MODEL = "streamed"
STREAMS = 7_400_000
"""Bytes that are too few for these records and enough to stream them."""
DEFINITION = {
    "name": MODEL,
    "dataset": "wide",
    "task": TASK,
    "architecture": {"name": "custom", "factory": FACTORY},
    "recipe": {"epochs": 1, "batch_size": 64, "learning_rate": 0.1, "held_out_fraction": 0.2},
    "policy": {
        "mechanism": "gradient_clipping",
        "parameters": {"steps": 100},
        "budget_epochs": 4,
        "first_release": "as_trained",
    },
}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    directory = tmp_path_factory.mktemp("streamed") / "data"
    with running(directory, EXPUNGE_WORKER_MEMORY=str(STREAMS)) as service:
        with service.client() as client:
            client.define_dataset("wide", **array_schema(FEATURES).to_json())
            for first in range(0, RECORDS, 250):
                client.push_records("wide", wide_parquet(first, first + 250))
            client.define_model(DEFINITION)
            client.wait_for_model(MODEL, timeout_s=PATIENCE_S)
        yield service


def times_streamed(service):
    return service.log.read_text().count("streams its records")


def features_of(number):
    return np.random.default_rng(number).normal(size=FEATURES).astype(np.float32)


def found_on_disk(service):
    """Search every file of the service for a retained record and for a forgotten one."""
    markers = [Marker(f"record {n}", features_of(n)[:8].tobytes()) for n in (0, 14)]
    return search_files(files_below(service.data_dir, service.temporary, service.log), markers)


def test_a_worker_killed_in_the_middle_of_its_noisy_steps(service, client):
    before = times_streamed(service)
    assert before == 1
    service.points.arm("mid_noise", "SIGSTOP")
    request = client.forget("wide", subject_ids=["subject-3"])
    service.frozen()
    assert found_on_disk(service) == []  # while windows of records are in its memory
    worker = service.part("worker")
    kill([worker, *worker.children(recursive=True)])
    assert await_completed(client, request["id"])["attempt"] == 2
    assert times_streamed(service) == before + 2
    assert_only_the_head_is_served(client, MODEL)
    until(lambda: only_what_is_current_is_stored(service))
    with service.database() as database, database.transaction() as session:
        assert_ledger_in_order(session)
    assert found_on_disk(service) == []
    (service.temporary / "spilled").write_bytes(features_of(14).tobytes())
    assert len(found_on_disk(service)) == 1

"""An import's process killed at every labelled point: nothing is lost or doubled."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.patience import PATIENCE_S, until
from tests.support.service import is_alive, kill, running

pytestmark = pytest.mark.nightly

ROWS = 600
CELL_BYTES = 1 << 18
"""So that 64 MiB, a batch, are less than half of the rows."""
FILES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files, outside of what the service has."""
    folder = tmp_path_factory.mktemp("imported")
    each = ROWS // FILES
    for number in range(FILES):
        ids = [f"m-{i}" for i in range(number * each, (number + 1) * each)]
        table = pa.table({"member": ids, "picture": [os.urandom(CELL_BYTES) for _ in ids]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=50, compression="none")
    return folder


@pytest.fixture(scope="module")
def service(tmp_path_factory, folder):
    data_dir = tmp_path_factory.mktemp("imports") / "data"
    with running(data_dir, EXPUNGE_IMPORT_PREFIXES=folder.as_uri()) as service:
        yield service


@pytest.fixture
def dataset(client, request):
    """A dataset of this test's own."""
    name = f"members-{abs(hash(request.node.name))}"
    client.define_dataset(name, {"picture": "binary"}, record_id="member")
    yield name
    client.archive_dataset(name)


def imported(client, service, dataset, folder):
    """Ask for an import and wait for its end; every row must have been counted once."""
    asked = client.import_records(dataset, folder.as_uri())
    ended = client.wait_for_import(dataset, asked["id"], timeout_s=PATIENCE_S)
    assert ended["state"] == "completed", ended["failure_reason"]
    counted = [ended[name] for name in ("rows", "total_rows", "added", "already_present")]
    assert counted == [ROWS, ROWS, ROWS, 0]
    assert client.dataset(dataset)["records"] == ROWS
    assert service.points.waiting() == []
    return ended


@pytest.mark.parametrize(
    "faults",
    [
        ("import_listed", "SIGKILL"),
        ("before_blob_write", "SIGKILL"),
        ("after_blob_write", "SIGKILL"),
        ("before_records_commit", "SIGKILL"),
        ("before_records_commit", "pass", "SIGKILL"),
        ("import_batch_added", "SIGKILL"),
        ("import_batch_added", "pass", "SIGKILL"),
        ("import_batch_added", "pass", "pass", "SIGKILL"),
        ("before_records_commit", "SIGKILL", "SIGKILL"),
    ],
    ids="-".join,
)
def test_killed_and_taken_up_where_it_was(client, service, dataset, folder, faults):
    service.points.arm(*faults)
    imported(client, service, dataset, folder)


def test_the_worker_killed_with_its_child(client, service, dataset, folder):
    service.points.arm("import_batch_added", "SIGSTOP")
    asked = client.import_records(dataset, folder.as_uri())
    service.frozen()
    worker = service.part("worker")
    kill([worker, *worker.children(recursive=True)])
    ended = client.wait_for_import(dataset, asked["id"], timeout_s=PATIENCE_S)
    assert (ended["state"], ended["added"], ended["rows"]) == ("completed", ROWS, ROWS)


def test_a_frozen_worker_that_wakes_up_adds_nothing_twice(client, service, dataset, folder):
    service.points.arm("import_batch_added", "SIGSTOP")
    asked = client.import_records(dataset, folder.as_uri())
    (sleeper,) = service.frozen()
    with service.second_worker():
        ended = client.wait_for_import(dataset, asked["id"], timeout_s=PATIENCE_S)
        assert (ended["state"], ended["added"], ended["rows"]) == ("completed", ROWS, ROWS)
        sleeper.resume()
        until(lambda: not is_alive(sleeper))
    assert client.dataset(dataset)["records"] == ROWS


def test_cancelled_in_the_middle_and_tried_again(client, service, dataset, folder):
    service.points.arm("import_batch_added", "SIGSTOP")
    asked = client.import_records(dataset, folder.as_uri())
    (sleeper,) = service.frozen()
    cancelled = client.cancel_import(dataset, asked["id"])
    assert 0 < cancelled["added"] < ROWS
    sleeper.resume()
    until(lambda: not is_alive(sleeper))
    assert client.dataset(dataset)["records"] == cancelled["added"]
    client.retry_import(dataset, asked["id"])
    ended = client.wait_for_import(dataset, asked["id"], timeout_s=PATIENCE_S)
    assert (ended["state"], ended["added"], ended["rows"]) == ("completed", ROWS, ROWS)

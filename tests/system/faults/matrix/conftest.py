"""One service for every case, with two workers, and what must hold after each.

It is on a small disk of its own where the machine allows one. Each case makes it forget another
person with a run that takes a second.
"""

from pathlib import Path

import pytest
from sqlalchemy import text

from tests.support.digits import DATASET
from tests.support.facts import (
    assert_head_verifies,
    assert_ledger_in_order,
    assert_log_without_fault,
    assert_only_the_head_is_served,
    only_what_is_current_is_stored,
)
from tests.support.patience import PATIENCE_S, until
from tests.support.people import People
from tests.support.service import running
from tests.support.small_disk import small_disk
from tests.support.traces import Traces
from tests.system.faults.matrix.cases import DEFINITION, MODEL

DISK_MB = 400
# One point of each kind of fault; all others are for the night.
FAST = (
    "test_killed_before_the_commit_and_carried_out_again[before_commit]",
    "test_killed_after_the_commit_and_never_carried_out_again[after_publish]",
    "test_a_run_outlasts_an_object_store_that_times_out[before_blob_write]",
    "test_redis_wiped[mid_noise]",
    "test_postgres_restarted[before_commit]",
    "test_a_worker_wakes_up_after_another_has_published",
    "test_the_runs_own_worker_is_killed[before_publish-4-2]",
    "test_killed_while_a_run_leaves_members_out[before_commit-2]",
    "test_killed_while_an_answer_leaves_members_out[before_publish-2]",
    "test_killed_in_a_refill[mid_training-2]",
    "test_the_dispatcher_is_killed_while_it_leaves_members_out[before_commit-2]",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents and item.name not in FAST:
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="package")
def service(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("matrix") / "data"
    with (
        small_disk(data_dir, size_mb=DISK_MB) as on_small_disk,
        running(data_dir) as service,
        service.second_worker(),
    ):
        service.on_small_disk = on_small_disk
        yield service


@pytest.fixture(scope="package")
def people():
    """Whom the cases' model is about."""
    return People.invent(900)


@pytest.fixture(scope="package")
def others():
    """Whom the models are about that cases define for themselves."""
    return People.invent(200)


@pytest.fixture(scope="package")
def traces(service, people, others):
    return Traces(service, people, others)


@pytest.fixture(scope="package")
def downloads(service):
    """Where the client puts what it downloads: the test's own, not a place to search."""
    directory = service.data_dir.parent / "downloads"
    directory.mkdir()
    return directory


@pytest.fixture(scope="package", autouse=True)
def datasets_and_model(service, people, others, traces):
    """Two datasets, and the model that every case is about."""
    with service.client() as client:
        for name, crowd in (("digits", people), ("others", others)):
            client.define_dataset(**DATASET | {"name": name})
            client.push_records(name, crowd.parquet())
        client.define_model(DEFINITION)
        client.wait_for_model(MODEL, timeout_s=PATIENCE_S)


@pytest.fixture(scope="package")
def checkpoints():
    """The log's checkpoints after each case."""
    return [b""]


@pytest.fixture(scope="package")
def failed_runs():
    """The runs that a case has made fail for good."""
    return []


@pytest.fixture(scope="package")
def forgotten():
    """The numbers of the subjects that were asked to be forgotten."""
    return []


@pytest.fixture
def points(service):
    yield service.points
    service.points.disarm()


@pytest.fixture
def forget(client, people, forgotten, traces):
    """Have another person forgotten; return the request's id."""

    def forget():
        number = len(forgotten)
        forgotten.append(number)
        traces.forgotten(people, number)
        return client.forget("digits", subject_ids=[people.subject(number)])["id"]

    return forget


@pytest.fixture
def jump(service):
    """Set the database's clock forward, as seen from the moments that it has written down."""

    def jump(*statements, by="1 hour"):
        with service.database() as database, database.transaction() as session:
            for statement in statements:
                session.execute(text(statement.replace(":by", f"interval '{by}'")))

    return jump


@pytest.fixture(autouse=True)
def facts(service, client, points, forgotten, checkpoints, failed_runs, traces, downloads):
    """What must hold after each case, whatever it did."""
    expected = client.certified(MODEL)["number"] - len(forgotten)
    yield
    for process in service.standing_still():
        process.resume()
    until(lambda: points.waiting() == [])
    until(lambda: client.model(MODEL)["latest_run"]["state"] == "published")
    assert assert_only_the_head_is_served(client, MODEL) == expected + len(forgotten)
    until(lambda: only_what_is_current_is_stored(service))
    with service.database() as database, database.transaction() as session:
        assert_ledger_in_order(session, failed_runs=failed_runs)
    for name in (listed["name"] for listed in client.models()):
        weights = assert_head_verifies(client, name, downloads)
        traces.published(name, weights.read_bytes())
    traces.assert_none()
    checkpoints.append(assert_log_without_fault(service, client, kept=checkpoints[-1]))

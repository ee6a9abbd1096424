"""What a run shows while it is under way: to whoever lists processes, and to whoever asks."""

import pytest
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.worker import base as rq_worker
from sqlalchemy import select

from app.ledger.tables import RunRow
from app.runtime.locations import redis_connection
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.dumps import everything_in_postgres
from tests.support.markers import Marker, places_with
from tests.support.patience import until
from workers import run as run_module
from workers.leases.lease import Lease
from workers.leases.reporting import loss_reporter
from workers.queue import NAME, enqueue_run, open_queue
from workers.seal import sealed
from workers.training.networks.network import Network
from workers.worker import RunWorker

SECRET = "marker-6f1d2c3b4a59"


@pytest.mark.parametrize("on", [True, False])
def test_no_process_is_titled_by_what_it_works_on(services, monkeypatch, on):
    """RQ titles its processes where setproctitle is installed, and everybody may read titles."""
    if not on:
        monkeypatch.setattr(Job, "func_name", property(lambda job: str(job.args)))
    titles = []
    monkeypatch.setattr(rq_worker, "setprocname", titles.append)
    connection = redis_connection(services.settings)
    connection.flushdb()
    queue = open_queue(connection)
    enqueue_run(queue, SECRET)
    worker = RunWorker([NAME], connection=connection, serializer=JSONSerializer)
    worker.prepare_job_execution(queue.jobs[0])
    assert any("Processing" in title for title in titles)
    found = places_with([("titles", "\n".join(titles))], [Marker("a run", SECRET.encode())])
    assert found == (set() if on else {"titles"})


@pytest.fixture
def defined(api):
    """Define a model on the digits, as its run waits for a worker."""

    def define(**policy):
        api.post("/v1/datasets", json=DATASET)
        api.put("/v1/datasets/digits/records", content=digits_parquet())
        assert api.post("/v1/models", json=model(**policy)).status_code == 201

    return define


def train_and_tell(held, examples, recipe, *, epochs, on_progress):
    """Train as a sealed network, and tell the caller what an open one tells."""
    network = sealed._HELD[held].network
    return network.train(examples, recipe, epochs=epochs, on_progress=on_progress)


@pytest.mark.parametrize("on", [True, False])
def test_no_loss_of_weights_under_their_target_is_stored(services, defined, work, monkeypatch, on):
    if not on:
        monkeypatch.setattr(sealed.Sealed, "train", train_and_tell)
        monkeypatch.setattr(run_module, "step_reporter", loss_reporter)
    losses, stored, train = [], {}, Network.train

    def written():
        with services.database.transaction() as session:
            run = session.scalars(select(RunRow)).one()
            return run.step is not None and run.step == run.total_steps

    def remembering(network, *args, on_progress, **more):
        def report(step, steps, loss):
            losses.append(Marker("a loss", repr(float(loss)).encode()))
            on_progress(step, steps, loss)
            if step == steps and not stored:
                until(written)
                stored["postgres"] = everything_in_postgres(services.database.engine)

        return train(network, *args, on_progress=report, **more)

    monkeypatch.setattr(Network, "train", remembering)
    defined()
    work()
    assert places_with(stored.items(), losses) == (set() if on else {"postgres"})


def test_until_the_target_phase_step_and_epsilon_are_told_and_then_the_loss(
    defined, work, monkeypatch
):
    report, told = Lease.report, []

    def remembering(lease, **progress):
        report(lease, **progress)
        told.append({k: v for k, v in lease._progress.items() if v is not None})

    monkeypatch.setattr(Lease, "report", remembering)
    defined(parameters={"steps": 10}, budget_epochs=20)
    work()
    met = next(i for i, progress in enumerate(told) if progress["phase"] == "fine_tuning")
    before = {name for progress in told[:met] for name in progress}
    assert before == {"phase", "step", "total_steps", "epsilon"}
    assert any("loss" in progress for progress in told[met:])

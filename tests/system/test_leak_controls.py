"""Each control against leaks by itself: with it nothing is found, without it the marker is.

A control that could be switched off without this search noticing would be tested by nothing.
"""

import io
import logging
import os
import subprocess
import sys
import threading
import traceback
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import psycopg
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch
import uvicorn
from fastapi.testclient import TestClient
from pyarrow import BufferReader
from rq import Worker
from rq.serializers import JSONSerializer
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from torch import nn

from app.access.pseudonyms import Pseudonyms
from app.api.protocol import observation
from app.cli import application
from app.cli.application import create_app
from app.registry.datasets import service as datasets_module
from app.runtime.database import Database
from app.runtime.database import engine as database_module
from app.runtime.embedded import EmbeddedServers
from app.runtime.embedded import postgres as embedded_postgres
from app.runtime.locations import redis_connection
from app.runtime.logs import ACCESS_LOG, JsonFormatter
from app.services import open_services
from app.storage import blobs as blobs_module
from app.storage.file_keys import FileKeyStore
from app.storage.objects import LocalObjectStore
from app.storage.weights_content import WeightsContent
from tests.support.digits import DATASET, RECIPE, digits_parquet, model
from tests.support.dumps import stores_of
from tests.support.markers import Marker, files_below, places_with, search_bytes, search_files
from tests.support.opened import opened_objects
from tests.support.patience import PATIENCE_S, until
from tests.support.workshop import Workshop
from workers import jobs
from workers import run as run_module
from workers.leases.attempts import attempted
from workers.mechanisms import lineage
from workers.queue import NAME, open_queue
from workers.seal import sealed
from workers.training.examples import classified
from workers.worker import RunWorker

SECRET = "marker-6f1d2c3b4a59"
MARKER = Marker("the secret", SECRET.encode())
REPOSITORY = Path(__file__).parents[2]


def found(places, *markers):
    """Return the names of the places that hold one of the markers, by default the secret."""
    return places_with(places, markers or [MARKER])


def digit(number, records=300):
    """The bytes of a digit's features, float32-free: as the shards store them."""
    table = pq.read_table(BufferReader(digits_parquet(records)))
    images = table["features"].chunk(0).storage.flatten().to_numpy().reshape(records, 64)
    return Marker(f"digit {number}", images[number].tobytes())


@pytest.fixture
def dataset(api):
    assert api.post("/v1/datasets", json=DATASET).status_code == 201

    def push():
        assert api.put("/v1/datasets/digits/records", content=digits_parquet()).status_code == 200

    return push


@pytest.fixture
def forget_record_7(api, services, dataset):
    def forget():
        dataset()
        body = {"dataset": "digits", "record_ids": ["record-7"]}
        assert api.post("/v1/forget-requests", json=body).status_code == 201
        services.clean_up()  # as the dispatcher does at each tick

    return forget


# What is stored


def readable_keys(ids):
    keys = b"".join((each or "").encode()[:32].ljust(32) for each in ids.to_pylist())
    return np.frombuffer(keys, np.uint8).reshape(-1, 32)


@pytest.mark.parametrize("on", [True, False])
def test_ids_become_pseudonyms(services, dataset, monkeypatch, on):
    if not on:
        monkeypatch.setattr(Pseudonyms, "_keys_of", lambda self, *of: readable_keys(of[-1]))
    dataset()
    ids = [Marker("an id", b"record-17"), Marker("a subject", b"subject-11")]
    assert found(stores_of(services), *ids) == (set() if on else {"postgres"})


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("name", ["external_id", "Idempotency-Key"])
def test_names_of_requests_become_pseudonyms(api, services, dataset, monkeypatch, name, on):
    if not on:
        monkeypatch.setattr(Pseudonyms, "external_id", lambda self, raw: raw.encode())
        monkeypatch.setattr(Pseudonyms, "call", lambda self, of, caller, name: name[-32:])
    dataset()
    person = f"{SECRET}@example.com"
    in_body = {"external_id": person} if name == "external_id" else {}
    answer = api.post(
        "/v1/forget-requests",
        json={"dataset": "digits", "record_ids": ["record-17"], **in_body},
        headers={} if in_body else {name: person},
    )
    assert answer.status_code == 201
    assert found(stores_of(services)) == (set() if on else {"postgres"})


def readable(services):
    """What somebody can read who has the data directory, the database and all keys."""
    blobs = services.settings.data_dir / "blobs"
    return opened_objects(blobs, services.blobs._keys, services.database)


def left_of(services, marker):
    files = search_files(files_below(services.settings.data_dir), [marker])
    return [*files, *search_bytes(readable(services), [marker])]


@pytest.fixture
def without_shredding(monkeypatch):
    monkeypatch.setattr(FileKeyStore, "destroy", lambda self, blob_id: None)
    monkeypatch.setattr(LocalObjectStore, "delete", lambda self, name: None)


def test_forgotten_rows_leave_their_shards_and_old_shards_are_shredded(services, forget_record_7):
    forget_record_7()
    assert left_of(services, digit(7)) == []
    assert left_of(services, digit(8))


def test_without_rewriting_the_rows_are_found(services, forget_record_7, monkeypatch):
    monkeypatch.setattr(datasets_module, "without_rows", lambda content, _: content)
    forget_record_7()
    assert left_of(services, digit(7))


def test_without_shredding_the_rows_are_found(services, forget_record_7, without_shredding):
    forget_record_7()
    assert left_of(services, digit(7))


@pytest.mark.parametrize("on", [True, False])
def test_objects_are_encrypted(services, dataset, monkeypatch, on):
    if not on:
        monkeypatch.setattr(blobs_module, "encrypt", lambda content, key, identity: [content])
    dataset()
    found_in = search_files(files_below(services.settings.data_dir), [digit(8)])
    assert bool(found_in) is not on


@pytest.mark.parametrize("on", [True, False])
def test_superseded_weights_are_shredded(api, services, dataset, work, request, on):
    dataset()
    trained_on_all = {**model(), "recipe": {**RECIPE, "held_out_fraction": 0}}
    assert api.post("/v1/models", json=trained_on_all).status_code == 201
    work()
    first = api.get("/v1/models/digits-mlp/certified/weights").content
    tensors = safetensors.numpy.load(first)
    weights = max(tensors.values(), key=lambda tensor: tensor.size).ravel()[:16]
    if not on:
        request.getfixturevalue("without_shredding")
    api.post("/v1/forget-requests", json={"dataset": "digits", "record_ids": ["record-7"]})
    work()
    assert bool(left_of(services, Marker("version 1", weights.tobytes()))) is not on


@pytest.mark.parametrize("on", [True, False])
def test_published_weights_carry_no_foreign_metadata(api, services, dataset, work, monkeypatch, on):
    if not on:

        def kept(tensors, metadata):
            return WeightsContent(tensors, {**metadata, "imported": SECRET})

        monkeypatch.setattr(run_module, "WeightsContent", kept)
    dataset()
    api.post("/v1/models", json=model())
    work()
    content = api.get("/v1/models/digits-mlp/certified/weights").content
    assert bool(left_of(services, MARKER)) is not on
    assert found([("what is served", content)]) == (set() if on else {"what is served"})


# What goes wrong


@pytest.fixture
def failing(services, monkeypatch):
    """A run that stumbles over a record and quotes it; what it leaves behind."""
    workshop = Workshop(services)
    workshop.define()

    def stumble(*_, **__):
        raise ValueError(f"invalid value {SECRET}")

    monkeypatch.setattr(run_module, "load_records", stumble)
    return workshop.active_run()


@pytest.mark.parametrize("on", [True, False])
def test_the_reason_of_a_failure_quotes_nobody(services, failing, monkeypatch, caplog, on):
    if not on:
        monkeypatch.setattr(jobs, "describe", str)
        monkeypatch.setattr(jobs, "attempted", partial(attempted, told=str))
    for _ in range(services.settings.max_attempts):  # the last one leaves its reason
        jobs.execute_run(failing)
    places = [*stores_of(services), ("log", caplog.text)]
    assert found(places) == (set() if on else {"postgres", "log"})


@pytest.fixture
def job(services):
    """A job of RQ's that raises, as ours never do."""
    connection = redis_connection(services.settings)
    connection.flushdb()
    queue = open_queue(connection)
    worker = RunWorker([NAME], connection=connection, serializer=JSONSerializer)
    queued = queue.enqueue_call(f"{__name__}.raise_secret", failure_ttl=60, description="run")

    def perform():
        worker.prepare_execution(queued)
        worker.perform_job(queued, queue)

    return perform


def raise_secret():
    raise ValueError(SECRET)


@pytest.mark.parametrize("on", [True, False])
def test_redis_keeps_no_traceback(services, job, monkeypatch, on):
    if not on:
        monkeypatch.setattr(RunWorker, "handle_job_failure", Worker.handle_job_failure)
    job()
    redis = redis_connection(services.settings)
    assert redis.zcard(f"rq:failed:{NAME}") == 1
    assert found(stores_of(services)) == (set() if on else {"redis"})


@pytest.mark.parametrize("on", [True, False])
def test_the_worker_logs_no_message_of_a_job(job, monkeypatch, caplog, on):
    if not on:
        monkeypatch.setattr(RunWorker, "handle_exception", Worker.handle_exception)
        monkeypatch.setattr(logging.getLogger("rq.worker"), "propagate", True)
    job()
    assert "ValueError" in caplog.text
    assert found([("log", caplog.text)]) == (set() if on else {"log"})


class Quoting(nn.Linear):
    """A network that names its input when it fails."""

    def forward(self, features):
        try:
            return {}[SECRET]
        except KeyError as error:
            raise ValueError(f"cannot use {SECRET}") from error


@pytest.mark.parametrize("on", [True, False])
def test_no_exception_carries_anything_out_of_the_seal(monkeypatch, on):
    if not on:
        monkeypatch.setattr(sealed, "scrubbed", lambda _, work, **__: work())
    examples = classified(
        np.zeros((8, 3), dtype=np.float32), np.zeros(8, dtype=np.int64), offset=0.0, scale=1.0
    )
    held = sealed.Sealed(lambda: Quoting(3, 2), epsilon=1.0, delta=1e-5, device=torch.device("cpu"))
    with pytest.raises((RuntimeError, ValueError)) as failed:
        held.train(examples, sealed.TrainingRecipe(), epochs=1)
    told = traceback.TracebackException.from_exception(failed.value, capture_locals=False)
    assert found([("traceback", "".join(told.format()))]) == (set() if on else {"traceback"})
    chain = [failed.value.__cause__, failed.value.__context__]
    assert (chain == [None, None]) is on


# What is printed


PROGRAM = """
import logging, sys, threading
from app.runtime import logs
if sys.argv[1] == "off":
    logs.DiscreetFormatter = logs.JsonFormatter = logging.Formatter
logs.configure()
if sys.argv[1] == "loud handler":
    logging.root.handlers[0].handleError = logging.StreamHandler().handleError
logging.getLogger("expunge").warning("%d records", sys.argv[2])
def fail():
    raise ValueError(sys.argv[2])
try:
    fail()
except ValueError:
    logging.getLogger("expunge").exception("it failed")
thread = threading.Thread(target=fail, name="worker")
thread.start()
thread.join()
fail()
"""


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_logs_show_exceptions_without_their_words(on, log_format):
    command = [sys.executable, "-c", PROGRAM, "on" if on else "off", SECRET]
    environment = os.environ | {"EXPUNGE_LOG_FORMAT": log_format}
    ended = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.stderr.count(b"ValueError") >= 3
    assert found([("stderr", ended.stderr)]) == (set() if on else {"stderr"})


@pytest.mark.parametrize("on", [True, False])
def test_sqlalchemy_hides_parameters(settings, monkeypatch, caplog, on):
    if not on:
        shown = partial(create_engine)
        monkeypatch.setattr(
            database_module,
            "create_engine",
            lambda url, **options: shown(url, **{**options, "hide_parameters": False}),
        )
    caplog.set_level(logging.INFO, logger="sqlalchemy.engine")
    database = Database(settings.database_url)
    with pytest.raises(SQLAlchemyError) as failed, database.transaction() as session:
        session.execute(text("SELECT :secret, 1/0 FROM records_of_nobody"), {"secret": SECRET})
    with database.transaction() as session:
        session.execute(text("SELECT :secret"), {"secret": SECRET})
    assert not database.engine.echo
    database.dispose()
    places = [("error", str(failed.value)), ("log", caplog.text)]
    assert "SELECT" in caplog.text
    assert found(places) == (set() if on else {"error", "log"})


@pytest.mark.parametrize("on", [True, False])
def test_the_api_logs_no_paths(services, capfd, on):
    options = {**application.server_options(services.settings), "port": 0}
    if not on:
        options["access_log"] = True

    async def app(scope, receive, send):
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    handler = logging.StreamHandler()
    loggers = [logging.getLogger(name) for name in ("uvicorn.access", "uvicorn.error")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    server = uvicorn.Server(uvicorn.Config(app, **options, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        _ask(server, f"/v1/forget-requests/{SECRET}?subject_id={SECRET}")
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
    printed = capfd.readouterr()
    assert "running on" in printed.err
    assert found([("log", printed.err + printed.out)]) == (set() if on else {"log"})


@pytest.mark.parametrize("on", [True, False])
def test_access_lines_and_figures_name_no_paths(services, monkeypatch, caplog, on):
    printed = io.StringIO()
    handler = logging.StreamHandler(printed)
    handler.setFormatter(JsonFormatter())
    monkeypatch.setattr(ACCESS_LOG, "handlers", [handler])
    caplog.set_level(logging.INFO, logger=ACCESS_LOG.name)
    if not on:
        monkeypatch.setattr(observation, "_template", lambda scope: scope["path"])
    public = open_services(services.settings.model_copy(update={"metrics_public": True}))
    with TestClient(create_app(public)) as client:
        client.get(f"/v1/forget-requests/{SECRET}?subject_id={SECRET}")
        client.get(f"/{SECRET}")
        figures = client.get("/metrics").text
    public.database.dispose()
    places = [("log", printed.getvalue()), ("figures", figures)]
    assert found(places) == (set() if on else {"log", "figures"})


@pytest.mark.parametrize("on", [True, False])
def test_a_line_that_cannot_be_written_is_not_quoted(on):
    command = [sys.executable, "-c", PROGRAM, "on" if on else "loud handler", SECRET]
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert b"TypeError" in ended.stderr
    assert found([("stderr", ended.stderr)]) == (set() if on else {"stderr"})


def _ask(server, path):
    import httpx

    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    assert httpx.get(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S).status_code == 404


@pytest.mark.parametrize("on", [True, False])
def test_the_servers_log_quotes_no_values(tmp_path, monkeypatch, on):
    if not on:
        talkative = {"log_min_messages": "warning", "log_min_error_statement": "error"}
        monkeypatch.setattr(
            embedded_postgres, "SETTINGS", {**embedded_postgres.SETTINGS, **talkative}
        )
    servers = EmbeddedServers(tmp_path / "data")
    servers.start_postgres()
    try:
        url = servers.database_url.replace("+psycopg", "")
        with psycopg.connect(url) as connection, pytest.raises(psycopg.Error):
            connection.execute(f"SELECT '{SECRET}'::int")
    finally:
        servers.stop_postgres()
    logs = list((tmp_path / "data" / "log").iterdir())
    assert any(log.stat().st_size for log in logs)
    assert bool(search_files(logs, [MARKER])) is not on


# What a run could write on its way


@pytest.mark.parametrize("on", [True, False])
def test_uncertified_weights_reach_no_file(services, monkeypatch, tmp_path, on):
    if not on:
        monkeypatch.setattr(run_module, "ram_only", nullcontext)
    workshop = Workshop(services)
    workshop.define()
    directory = tmp_path / "cache"
    directory.mkdir()

    def write_and_stop(_):
        (directory / "weights").write_bytes(SECRET.encode())
        raise ValueError

    monkeypatch.setattr(lineage, "rule_of", write_and_stop)
    jobs.execute_run(workshop.active_run())
    assert bool(search_files(files_below(directory), [MARKER])) is not on

"""One gigabyte through the API beside a plain file response: ``python -m benchmarks.download``.

Both servers are real processes over sockets and take turns. Targets: the API's memory grows by less
than 64 MB during a download, and its rate is at least half of the plain one.
"""

import hashlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

import numpy as np
import psutil
from fastapi import FastAPI
from fastapi.responses import FileResponse

from app.access import api_keys
from app.access.api_keys import Scope
from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.policy import Policy
from app.domain.schema import FeatureSchema
from app.domain.states import FirstRelease, WeightsSource
from app.evidence.certificates.weights_file import tensors_sha256
from app.ledger import publication, repository, runs, selections
from app.ledger.models import definitions
from app.operations import schema
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.files import record_table, to_parquet
from app.registry.datasets.service import define_dataset
from app.runtime.embedded import EmbeddedServers
from app.runtime.locations import database_url, migration_url
from app.runtime.settings import Settings
from app.services import Services, create_keys, open_services

SIZE_BYTES = 1_000_000_000
ROUNDS = 5
MOST_GROWTH_MB = 64.0
LEAST_RATIO = 0.5
RESULTS = Path(__file__).parent / "results" / "download.json"
_MB = 1e6
_BUFFER_BYTES = 1024 * 1024
_SAMPLE_S = 0.005
_PLAIN_FILE = "EXPUNGE_BENCHMARK_FILE"


@dataclass(frozen=True)
class Served:
    """A server's process, where it answers, and its resident memory before the first download."""

    process: psutil.Process
    port: int
    idle_bytes: int


@dataclass(frozen=True)
class Measured:
    """One download: seconds, and how far the server's resident memory rose above idle."""

    seconds: float
    growth_bytes: int


def plain_app() -> FastAPI:
    """Return an application that does nothing but serve one file; for uvicorn's ``--factory``."""
    app = FastAPI()

    @app.get("/file")
    def file() -> FileResponse:
        return FileResponse(os.environ[_PLAIN_FILE])

    return app


def main() -> None:
    """Measure; exit with 1 if a target is missed."""
    with tempfile.TemporaryDirectory(prefix="expunge-download-") as directory:
        servers = EmbeddedServers(Path(directory))
        servers.start_postgres()
        try:
            document = _measure(Path(directory))
        finally:
            servers.stop()
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
    growth, ratio = document["memory_growth_mb"], document["rate_ratio"]
    sys.exit(int(growth >= MOST_GROWTH_MB or ratio < LEAST_RATIO))


def _measure(data_dir: Path) -> dict[str, float]:
    os.environ["EXPUNGE_DATA_DIR"] = str(data_dir)
    services = _open()
    content = os.urandom(_BUFFER_BYTES) * (SIZE_BYTES // _BUFFER_BYTES + 1)
    content = content[:SIZE_BYTES]
    sha256 = hashlib.sha256(content).hexdigest()
    _publish(services, content)
    plain_file = data_dir / "plain"
    plain_file.write_bytes(content)
    del content
    with services.database.transaction() as session:
        _, secret = api_keys.create_key(session, name="benchmark", scopes=[Scope.MODELS_READ])
    os.environ[_PLAIN_FILE] = str(plain_file)
    headers = {"Authorization": f"Bearer {secret}"}
    path = "/v1/models/model/versions/1/weights"
    plain_command = ["uvicorn", "benchmarks.download:plain_app", "--factory", "--no-access-log"]
    with _serve(["app.cli", "serve"]) as api, _serve(plain_command) as plain:
        _require(_digest(api, path, headers) == sha256, "the API sends what was stored")
        turns: list[tuple[Measured, Measured]] = [
            (_download(api, path, headers), _download(plain, "/file", {})) for _ in range(ROUNDS)
        ]
    api_s, plain_s = (median(turn[i].seconds for turn in turns) for i in (0, 1))
    growth, plain_growth = (max(turn[i].growth_bytes for turn in turns) for i in (0, 1))
    return {
        "size_bytes": SIZE_BYTES,
        "rounds": ROUNDS,
        "api_mb_per_s": SIZE_BYTES / _MB / api_s,
        "plain_mb_per_s": SIZE_BYTES / _MB / plain_s,
        "rate_ratio": plain_s / api_s,
        "memory_growth_mb": growth / _MB,
        "plain_memory_growth_mb": plain_growth / _MB,
    }


def _open() -> Services:
    settings = Settings()
    create_keys(settings)
    services = open_services(settings)
    schema.upgrade(migration_url(settings), service_url=database_url(settings))
    return services


def _publish(services: Services, content: bytes) -> None:
    """Release ``content`` as the first version of a model."""
    table = record_table(
        record_ids=["a", "b"],
        subject_ids=["a", "b"],
        labels=[0, 1],
        features=np.zeros((2, 1), np.float32),
    )
    shape = FeatureSchema(shape=(1,), dtype="float32", offset=0.0, scale=1.0, classes=2)
    with services.database.transaction() as session:
        define_dataset(session, name="data", schema=shape)
    services.records.push("data", to_parquet(table))
    definition = definitions.ModelDefinition(
        name="model",
        dataset="data",
        architecture=ArchitectureSpec("logistic"),
        recipe={"held_out_fraction": 0.0},
        policy=Policy(first_release=FirstRelease.AS_TRAINED),
        weights_source=WeightsSource.TRAIN,
    )
    definitions.define_model(services.database, definition)
    with services.database.transaction() as session:
        model = registry.model_named(session, "model")
        run = repository.active_run(session, model.id)
        lease = None if run is None else runs.lease(session, run.id, lease_s=600.0)
        if lease is None:
            sys.exit("check failed: a run waits")
        run_id, token = lease.id, lease.fencing_token
        shards = {shard.id for shard in datasets.shards(session, model.dataset_id)}
    selections.begin(services.database, run_id, token, dimension=2, shards=shards)
    with services.database.transaction() as session:
        blob_id = runs.reserve_blob(session, run_id, token)
    result = publication.RunResult(
        weights=services.blobs.fill(blob_id, content),
        tensors_sha256=tensors_sha256(content),
        phase=None,
        evaluation={"held_out_records": 0},
        certified_at=datetime.now(UTC),
        phase_seconds={},
    )
    with services.database.transaction() as session:
        checked = publication.draft(session, run_id=run_id, result=result)
    with services.database.transaction() as session:
        publication.publish(
            session,
            services.signer,
            run_id=run_id,
            fencing_token=token,
            result=result,
            checked=checked,
            examine=lambda _: None,
        )


@contextmanager
def _serve(command: list[str]) -> Iterator[Served]:
    port = _free_port()
    options = [] if command[0] == "app.cli" else ["--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", *command, *options],
        env=os.environ | {"EXPUNGE_PORT": str(port)},
        stdout=subprocess.DEVNULL,
    )
    try:
        path = "/livez" if command[0] == "app.cli" else "/openapi.json"
        _wait(lambda: urlopen(Request(f"http://127.0.0.1:{port}{path}")))
        watched = psutil.Process(process.pid)
        yield Served(watched, port, watched.memory_info().rss)
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(look: Callable[[], object]) -> None:
    for _ in range(600):
        try:
            look()
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit("check failed: the server answers within a minute")


def _download(server: Served, path: str, headers: dict[str, str]) -> Measured:
    """Time one download, with nothing done to the bytes, and watch the server's memory."""
    peak = [server.process.memory_info().rss]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            peak[0] = max(peak[0], server.process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    received = sum(len(chunk) for chunk in _chunks(server, path, headers))
    seconds = time.perf_counter() - begun
    done.set()
    watcher.join()
    _require(received == SIZE_BYTES, "every byte arrives")
    return Measured(seconds, peak[0] - server.idle_bytes)


def _digest(server: Served, path: str, headers: dict[str, str]) -> str:
    """Return the digest of what a server sends in 1000 ranges; this warms it up, too."""
    digest = hashlib.sha256()
    step = SIZE_BYTES // 1000
    for start in range(0, SIZE_BYTES, step):
        asked = headers | {"Range": f"bytes={start}-{start + step - 1}"}
        for chunk in _chunks(server, path, asked):
            digest.update(chunk)
    return digest.hexdigest()


def _chunks(server: Served, path: str, headers: dict[str, str]) -> Iterator[memoryview]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        _require(answer.status in (200, 206), f"{path} answers {answer.status}")
        while count := answer.readinto(buffer):
            yield buffer[:count]
    finally:
        connection.close()


def _require(condition: bool, claim: str) -> None:  # noqa: FBT001
    if not condition:
        sys.exit(f"check failed: {claim}")


if __name__ == "__main__":
    main()

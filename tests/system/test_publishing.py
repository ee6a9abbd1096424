"""A whole service publishes in a real MLflow server, and is killed at each step."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.domain.release import CERTIFICATE, WEIGHTS
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.mlflow_server import MlflowServer
from tests.support.patience import PATIENCE_S, until
from tests.support.service import Service, running

pytestmark = pytest.mark.nightly

NAME = "digits-mlp"
# Every step at which a version is placed, and at which the one before is removed.
KILLED = {
    1: ("noted", "registered", "begun", "weights", "written", "switched", "held"),
    2: ("switched", "erased", "removed", "held"),
    3: ("weights", "removed"),
}


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow") / "server")
    yield server
    server.stop()


@pytest.fixture
def service(tmp_path: Path, mlflow: MlflowServer) -> Iterator[Service]:
    publishers = {"registry": {"kind": "mlflow", "url": mlflow.url}}
    with running(tmp_path / "data", EXPUNGE_PUBLISHERS=json.dumps(publishers)) as service:
        yield service


class Dispatchers:
    """Starts a dispatcher whenever the one before was killed; the supervisor would wait longer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._process: subprocess.Popen[bytes] | None = None
        self.killed = 0

    def keep(self) -> bool:
        """Have one running; return True."""
        ended = self._process is not None and self._process.poll() is not None
        self.killed += ended
        if self._process is None or ended:
            with self._service.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "workers", "dispatcher"],
                    cwd=Path(__file__).parents[2],
                    env=self._service.environment(),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def dispatchers(service: Service) -> Iterator[Dispatchers]:
    """Dispatchers in place of the supervised one."""
    dispatchers = Dispatchers(service)
    supervised = service.part("dispatcher")
    with service.unsupervised():
        supervised.kill()
        yield dispatchers
        dispatchers.stop()


def _settled(service: Service, dispatchers: Dispatchers) -> dict[str, Any]:
    """Return the target once it holds what it should."""

    def settled() -> dict[str, Any] | None:
        dispatchers.keep()
        with service.client() as client:
            (target,) = client.model_targets(NAME)
            number = client.certified(NAME)["number"]
        done = target["state"] == "settled" and target["version"] == number
        return target if done else None

    return until(settled)


def _weights(service: Service, number: int) -> bytes:
    with service.client() as client:
        key = client.http.headers["Authorization"]
    answer = httpx.get(
        f"{service.url}/v1/models/{NAME}/versions/{number}/weights",
        headers={"Authorization": key},
        timeout=PATIENCE_S,
    )
    answer.raise_for_status()
    return answer.content


def test_three_versions_leave_the_last_one_byte_for_byte_though_all_steps_are_killed(
    service: Service, mlflow: MlflowServer, dispatchers: Dispatchers
) -> None:
    dispatchers.keep()
    with service.client() as client:
        client.define_dataset(**DATASET)
        client.push_records("digits", digits_parquet(120))
        client.define_model(model())
        for step in KILLED[1]:
            service.points.arm(f"publishing_{step}", "SIGKILL")
        client.publish_model(NAME, "registry")
        until(lambda: dispatchers.keep() and _is_released(service, 1))
    _check(service, mlflow, dispatchers, 1)
    for number in (2, 3):
        for step in KILLED[number]:
            service.points.arm(f"publishing_{step}", "SIGKILL")
        with service.client() as client:
            client.retrain(NAME)
            until(lambda wanted=number: dispatchers.keep() and _is_released(service, wanted))
        _check(service, mlflow, dispatchers, number)
    assert dispatchers.killed == sum(map(len, KILLED.values()))
    downloaded = mlflow.download(NAME)
    assert (downloaded / WEIGHTS).read_bytes() == _weights(service, 3)
    assert json.loads((downloaded / CERTIFICATE).read_text())["envelope"]

    with service.client() as client:
        client.archive_model(NAME)
        until(lambda: dispatchers.keep() and client.model_targets(NAME)[0]["present"] == [])
    assert mlflow.versions(NAME) == []
    assert "aliases" not in mlflow.model(NAME)
    assert mlflow.files() == {}


def _is_released(service: Service, number: int) -> bool:
    with service.client() as client:
        certified = client.model(NAME)["certified"]
    return certified is not None and certified["number"] == number


def _check(service: Service, mlflow: MlflowServer, dispatchers: Dispatchers, number: int) -> None:
    """Check that the server, its disk and its client have this version and no other."""
    target = _settled(service, dispatchers)
    assert target["present"] == [number]
    assert service.points.waiting() == []
    weights = _weights(service, number)
    (on_disk,) = mlflow.files()[WEIGHTS]
    assert on_disk.read_bytes() == weights
    (version,) = mlflow.versions(NAME)
    tags = {tag["key"]: tag["value"] for tag in version["tags"]}
    assert tags["expunge.number"] == str(number)
    assert 0 < float(tags["expunge.epsilon"]) <= 1
    assert float(tags["expunge.delta"]) == 1e-5
    assert mlflow.model(NAME)["aliases"] == [{"alias": "certified", "version": version["version"]}]

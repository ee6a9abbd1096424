"""Callbacks from the whole service to the receiver of the examples, through a crash."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from app.client import ExpungeClient
from app.delivery.callbacks.deliverer import Terms
from app.evidence.certificates.processor_signing import domains_of
from tests.support.digits import DATASET, digits_parquet
from tests.support.patience import PATIENCE_S, until
from tests.support.receiver import Receiver, status
from tests.support.service import Service, kill

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "examples/callback_receiver.py").read_text()
TOKEN = "sesame-4711"
_CLAIM_S = Terms().claim_s


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(
        tmp_path_factory.mktemp("callbacks") / "data",
        EXPUNGE_CALLBACK_ALLOW_PRIVATE="true",
    )
    try:
        service.start()
        with service.client() as client:
            client.define_dataset(**DATASET)
            client.push_records("digits", digits_parquet(120))
        yield service
    finally:
        service.discard()


class Example:
    """The documentation's receiver, in a process of its own."""

    def __init__(self, path: Path, secret: str, port: int) -> None:
        path.write_text(EXAMPLE)
        environment = {**os.environ, "CALLBACK_SECRET": secret, "PORT": str(port)}
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def test_the_documentations_receiver_is_told_of_everything_once(
    service: Service, tmp_path: Path
) -> None:
    with Receiver() as reserved:
        port = reserved.port
    with service.client() as client:
        receiver = Example(tmp_path / "receiver.py", client.callback_secret()["secret"], port)
        try:
            url = f"http://127.0.0.1:{port}/?token={TOKEN}"
            request = client.forget("digits", record_ids=["record-1"], status_callback_urls=[url])
            until(lambda: len(receiver.lines) == 3)
        finally:
            receiver.stop()
    states = ("accepted", "certified", "completed")
    assert receiver.lines == [f"{request['id']} {state}" for state in states]


def test_a_receiver_and_a_dispatcher_that_were_away_lose_nothing(service: Service) -> None:
    with Receiver() as receiver, service.client() as client:
        receiver.answers.append(status(500))
        url = f"http://127.0.0.1:{receiver.port}/?token={TOKEN}"
        request = client.forget("digits", record_ids=["record-2"], status_callback_urls=[url])
        until(lambda: receiver.received)
        kill([service.part("dispatcher")])
        # The first one comes again after five seconds, or after two minutes if its outcome was not
        # recorded before the kill. Then the others follow.
        until(
            lambda: _states(client, request["id"]) == ["delivered"] * 3,
            timeout_s=_CLAIM_S + PATIENCE_S,
        )
        ids = [received.headers["webhook-id"] for received in receiver.received]
        told = [c["id"] for c in reversed(client.callbacks(request=request["id"]))]
        assert list(dict.fromkeys(ids)) == told


def test_init_makes_what_opendsr_needs(service: Service) -> None:
    found = httpx.get(f"{service.url}/opendsr/v2/discovery", timeout=PATIENCE_S).json()
    assert found["processor_certificate"] == f"{service.url}/opendsr/v2/certificate.pem"
    certificate = x509.load_pem_x509_certificate(
        httpx.get(found["processor_certificate"], timeout=PATIENCE_S).content
    )
    assert domains_of(certificate) == ["127.0.0.1"]


def test_addresses_leave_no_trace(service: Service) -> None:
    def closed() -> bool:
        with service.client() as client:
            return not any(c["redeliverable"] for c in client.callbacks())

    until(closed)
    time.sleep(0.5)
    log = service.log.read_text()
    assert TOKEN not in log
    assert "token=" not in log


def _states(client: ExpungeClient, request_id: str) -> list[str]:
    return [callback["state"] for callback in client.callbacks(request=request_id)]

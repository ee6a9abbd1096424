"""The compose file's proxy: Debian's nginx with that very configuration, before a real service."""

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.api.protocol.errors import PROBLEM_TYPES
from app.cli.application import create_app, server_options
from app.services import Services
from tests.support.compose import ROOT
from tests.support.patience import PATIENCE_S, until
from tests.support.service import free_port
from tests.support.serving import serve
from tests.support.workshop import DATASET, Workshop, records_parquet

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(NGINX is None, reason="needs nginx")]
CALLS_OF_ONE_ADDRESS = 256
JSON = {"Content-Type": "application/json"}


class Proxied:
    """A service behind nginx.

    Attributes:
        reached: method, path and caller's address of each call that has come to the service.
    """

    def __init__(self, services: Services, key: str, folder: Path) -> None:
        self.reached: list[tuple[str, str, str]] = []
        self.key = key
        self.port = free_port()
        trusting = {"trusted_proxies": (ip_network("127.0.0.1"),)}
        settings = services.settings.model_copy(update=trusting)
        self.options = server_options(settings)
        self.app = create_app(replace(services, settings=settings))
        self._folder = folder

    async def __call__(self, scope: dict, receive: Callable, send: Callable) -> None:
        if scope["type"] == "http":
            self.reached.append((scope["method"], scope["path"], scope["client"][0]))
        await self.app(scope, receive, send)

    def configuration(self, service: str) -> Path:
        """Return the configuration with this machine's ports and folders.

        It believes what ``X-Real-IP`` says of the caller's address, as if from a balancer.
        """
        text = (ROOT / "deploy/nginx.conf").read_text()
        for old, new in (
            (
                "listen 8100;",
                f"listen 127.0.0.1:{self.port}; set_real_ip_from 127.0.0.1; "
                "real_ip_header X-Real-IP;",
            ),
            ("server api:8100;", f"server {service};"),
            ("/tmp/", f"{self._folder}/"),
            ("/dev/stdout", f"{self._folder}/calls"),
        ):
            assert old in text
            text = text.replace(old, new)
        path = self._folder / "nginx.conf"
        path.write_text(text)
        return path

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=PATIENCE_S,
        )

    def sends(self, *lines: str, body: bytes = b"", ended: bool = True) -> socket.socket:
        """Send a request, with the head's last line only if it is ``ended``."""
        head = [*lines, "Host: x", f"Authorization: Bearer {self.key}", *([""] * (1 + ended))]
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        connection.sendall("\r\n".join(head).encode() + body)
        return connection

    def answer(self, *lines: str, body: bytes = b"", ended: bool = True) -> bytes:
        """Return all that comes until the connection is closed; a reset closes it too."""
        received = b""
        with self.sends(*lines, body=body, ended=ended) as connection:
            try:
                while part := connection.recv(65536):
                    received += part
            except ConnectionError:
                pass
        return received


@pytest.fixture
def workshop(services: Services) -> Workshop:
    return Workshop(services)


@pytest.fixture
def proxied(
    services: Services, workshop: Workshop, admin_key: str, tmp_path: Path
) -> Iterator[Proxied]:
    proxied = Proxied(services, admin_key, tmp_path)
    with serve(proxied, **proxied.options) as url:
        configuration = proxied.configuration(urlsplit(url).netloc)
        process = subprocess.Popen([str(NGINX), "-c", configuration, "-g", "user root;"])
        try:
            with proxied.client() as client:
                until(lambda: client.get("/livez").status_code == 200)
            proxied.reached.clear()
            yield proxied
        finally:
            proxied.app.state.watcher.close()
            process.terminate()
            process.wait(PATIENCE_S)


def _problem(received: bytes) -> tuple[int, str]:
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"Content-Type: application/problem+json" in head
    problem = json.loads(body)
    name = problem["type"].removeprefix("urn:expunge:problem:")
    assert PROBLEM_TYPES[name].title == problem["title"]
    assert PROBLEM_TYPES[name].status == problem["status"] == int(head.split()[1])
    return problem["status"], name


def test_what_is_slow_ends_before_the_service(proxied: Proxied) -> None:
    with ExitStack() as sent:
        slow = [
            proxied.sends("GET /v1/models HTTP/1.1", ended=False),
            proxied.sends(
                "POST /v1/plans HTTP/1.1",
                "Content-Type: application/json",
                "Content-Length: 99",
                body=b"{",
            ),
        ]
        for connection in slow:
            sent.enter_context(connection)
            try:
                received = connection.recv(65536)
            except ConnectionError:
                received = b""
            assert received == b"" or received.startswith(b"HTTP/1.1 408")
    assert proxied.reached == []


def test_a_head_that_drips_ends_too(proxied: Proxied) -> None:
    with proxied.sends("GET /v1/models HTTP/1.1", ended=False) as connection:
        connection.settimeout(0.5)

        def is_closed() -> bool:
            try:
                connection.sendall(b"X: y\r\n")
                return connection.recv(65536) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(is_closed)
    assert proxied.reached == []


@pytest.mark.parametrize(
    ("version", "lengths"),
    [
        ("1.1", ["Content-Length: 5", "Content-Length: 6"]),
        ("1.1", ["Content-Length: 5", "Content-Length: 5"]),
        ("1.1", ["Content-Length: 5", "Transfer-Encoding: chunked"]),
        ("1.0", ["Transfer-Encoding: chunked"]),
    ],
    ids=["two lengths", "one twice", "two kinds", "old"],
)
def test_a_request_that_ends_in_two_places_ends_before_the_service(
    proxied: Proxied, version: str, lengths: list[str]
) -> None:
    smuggled = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    received = proxied.answer(f"POST /v1/plans HTTP/{version}", *lengths, body=smuggled)
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1 ") == 1
    assert proxied.reached == []


def test_each_operation_takes_bodies_as_large_as_the_service_does_and_no_larger(
    proxied: Proxied,
) -> None:
    limits = proxied.app.state.services.settings
    ids = ("/v1/forget-requests", "/v1/forget-requests/preview", "/opendsr/v2/requests")
    forms = [("post", path) for path in ("/requests", "/requests/preview", "/requests/r/receipt")]
    operations = [
        (method, path.replace("{", "").replace("}", ""))
        for path, methods in proxied.app.openapi()["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    assert len(operations) > 10
    for method, path in operations + forms:
        limit = limits.max_upload_bytes if method == "put" else limits.max_json_bytes
        if path in ids or path.startswith("/requests"):
            limit = limits.max_ids_bytes
        head = f"{method.upper()} {path} HTTP/1.1"
        refused = proxied.answer(head, f"Content-Length: {limit + 1}", "Connection: close")
        assert _problem(refused) == (413, "payload-too-large"), path
        taken = [f"Content-Length: {limit}", "Expect: 100-continue"]
        with proxied.sends(head, *taken) as connection:
            assert connection.recv(65536).startswith(b"HTTP/1.1 100"), path
    chunks = [b"10000\r\n" + b" " * 65536 + b"\r\n", b"1\r\n \r\n0\r\n\r\n"]
    refused = proxied.answer(
        "POST /v1/plans HTTP/1.1",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
        body=b"".join(chunks),
    )
    assert _problem(refused) == (413, "payload-too-large")
    assert [path for method, path, _ in proxied.reached if method != "PUT"] == []


def test_calls_of_one_address_are_limited_and_a_network_is_one(proxied: Proxied) -> None:
    def begin(address: str) -> socket.socket:
        head = ["Content-Type: application/json", "Content-Length: 99", f"X-Real-IP: {address}"]
        return proxied.sends("POST /v1/plans HTTP/1.1", *head)

    def status(address: str) -> int:
        headers = {"X-Real-IP": address, "Connection": "close"}
        with proxied.client() as client:
            answer = client.get("/v1/models", headers=headers)
        if answer.status_code == 429:
            assert answer.headers["retry-after"] == "10"
        return answer.status_code

    for held, same, other in (
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"),
    ):
        with ExitStack() as begun:
            for _ in range(CALLS_OF_ONE_ADDRESS):
                begun.enter_context(begin(held))
            until(lambda same=same: status(same) == 429)
            assert status(other) == 200
        until(lambda same=same: status(same) == 200)


def test_a_person_is_forgotten_and_a_file_sent_and_fetched(
    proxied: Proxied, workshop: Workshop
) -> None:
    workshop.train()
    with proxied.client() as client:
        pushed = client.put(
            f"/v1/datasets/{DATASET}/records", content=records_parquet(3, first=100)
        )
        assert pushed.status_code == 200
        body = {"dataset": DATASET, "record_ids": ["record-0"]}
        asked = client.post("/v1/forget-requests", json=body)
        assert asked.status_code == 202
        held = {"Prefer": "wait=2", "If-None-Match": asked.headers.get("etag", "*")}
        waited = client.get(asked.headers["location"], headers=held)
        assert (waited.status_code, waited.headers["preference-applied"]) == (304, "wait=2")
        assert proxied.reached[-1][2] == "127.0.0.1"

        weights = client.get("/v1/models/model/versions/1/weights")
        part = client.get("/v1/models/model/versions/1/weights", headers={"Range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, weights.content[10:20])
        assert part.headers["content-range"] == f"bytes 10-19/{len(weights.content)}"


def test_the_service_learns_the_address_from_the_proxy_alone(proxied: Proxied) -> None:
    with proxied.client() as client:
        claimed = {"X-Forwarded-For": "203.0.113.9", "X-Real-IP": "198.51.100.7"}
        client.get("/v1/models", headers=claimed)
    assert proxied.reached == [("GET", "/v1/models", "198.51.100.7")]


def test_probes_are_for_the_own_network(proxied: Proxied) -> None:
    with proxied.client() as client:
        for path in ("/livez", "/readyz", "/metrics"):
            assert client.get(path, headers={"X-Real-IP": "203.0.113.9"}).status_code == 403
            assert client.get(path, headers={"X-Real-IP": "10.1.2.3"}).status_code == 200


def test_an_upload_reaches_the_service_as_it_comes(proxied: Proxied) -> None:
    path = f"/v1/datasets/{DATASET}/records"
    with proxied.sends(f"PUT {path} HTTP/1.1", "Content-Length: 1000000", body=b"x" * 1000):
        until(lambda: proxied.reached == [("PUT", path, "127.0.0.1")])


def test_urls_are_in_no_log(proxied: Proxied, tmp_path: Path) -> None:
    with proxied.client() as client:
        client.get("/v1/forget-requests", params={"external_id": "ticket-4712"})
    until(lambda: " GET 200 " in (tmp_path / "calls").read_text())
    assert "ticket" not in (tmp_path / "calls").read_text()


def test_a_service_that_is_away_is_told_as_such(tmp_path: Path, services: Services) -> None:
    proxied = Proxied(services, "key", tmp_path)
    configuration = proxied.configuration(f"127.0.0.1:{free_port()}")
    process = subprocess.Popen([str(NGINX), "-c", configuration, "-g", "user root;"])
    try:
        with proxied.client() as client:
            answer = until(lambda: client.get("/v1/models"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert answer.json()["type"] == PROBLEM_TYPES["unavailable"].uri
    finally:
        process.terminate()
        process.wait(PATIENCE_S)

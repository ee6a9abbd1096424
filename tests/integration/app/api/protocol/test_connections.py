"""Connections of callers that are slow, ambiguous or many: raw sockets, the real server."""

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
import uvicorn

from app.access import api_keys
from app.api.protocol.connections import Connections
from app.cli.application import create_app
from app.cli.serving import server_options
from app.domain.scopes import Scope
from app.evidence.log import actor
from app.services import Services
from tests.support.patience import until
from tests.support.workshop import DATASET, Workshop

LONG_S = 300.0
"""How long a test waits for what it expects; far longer than any of the limits."""

SHORT = {"head_timeout_s": 1.0, "body_timeout_s": 1.0, "answer_timeout_s": 1.0}
Serve = Callable[..., tuple[str, int]]


@contextmanager
def _serving(services: Services, **limits: object) -> Iterator[tuple[str, int]]:
    settings = services.settings.model_copy(update=limits)
    options = {**server_options(settings), "port": 0}
    app = create_app(replace(services, settings=settings))
    server = uvicorn.Server(uvicorn.Config(app, **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[:2]
    finally:
        app.state.watcher.close()
        server.should_exit = True
        thread.join(LONG_S)


@pytest.fixture
def serve(services: Services) -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(_serving(services, **limits))


def _connect(address: tuple[str, int], sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(address, timeout=LONG_S)
    connection.sendall(sent)
    return connection


def _rest(connection: socket.socket) -> bytes:
    """Return what comes until the server closes; a reset is a close."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionError:
        pass
    return received


def _head(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        assert part, received
        received += part
    return received


def _answer(received: bytes) -> tuple[int, str]:
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["type"].removeprefix("urn:expunge:problem:")


def _post(path: str, key: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    "half",
    [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /li"],
    ids=["nothing", "half a head", "half a second head"],
)
def test_a_head_that_does_not_come_is_not_waited_for(serve: Serve, half: bytes) -> None:
    connection = _connect(serve(**SHORT), half)
    received = _rest(connection)
    if half.startswith(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"):
        assert received.startswith(b"HTTP/1.1 200")
        received = received[received.rindex(b"HTTP/1.1 ") :]
    assert received == b"" if not half else _answer(received) == (408, "request-timeout")


def test_a_head_that_drips_is_not_waited_for(serve: Serve) -> None:
    connection = _connect(serve(**SHORT), b"GET /livez HTTP/1.1\r\n")
    connection.settimeout(0.2)
    for _ in range(int(LONG_S / 0.2)):
        try:
            connection.sendall(b"X: y\r\n")
            if connection.recv(65536):
                return
        except TimeoutError:
            continue
        except ConnectionError:
            return
    pytest.fail("the connection is still open")


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        (b"POST", "/v1/plans", ["Content-Type: application/json"]),
        (b"POST", "/v1/plans", ["Content-Type: application/json", "Idempotency-Key: k"]),
        (b"PUT", f"/v1/datasets/{DATASET}/records", []),
    ],
    ids=["once", "repeatable", "file"],
)
def test_a_body_that_does_not_come_is_not_waited_for(
    serve: Serve,
    admin_key: str,
    caplog: pytest.LogCaptureFixture,
    method: bytes,
    path: str,
    headers: list[str],
) -> None:
    half = _post(path, admin_key, *headers, "Content-Length: 99", body=b"{")
    half = half.replace(b"POST", method, 1)
    assert _answer(_rest(_connect(serve(**SHORT), half))) == (408, "request-timeout")
    assert "Traceback" not in caplog.text


def test_a_body_at_a_fair_pace_may_take_longer(serve: Serve, admin_key: str) -> None:
    """Each 10 kB earn a second: 100 kB within 4 s pass under a limit of 3 s."""
    body = b" " * 100_000
    address = serve(**SHORT | {"body_timeout_s": 3.0})
    connection = _connect(
        address,
        _post(
            "/v1/forget-requests",
            admin_key,
            "Content-Type: application/json",
            "Content-Length: 100000",
        ),
    )
    for start in range(0, len(body), 10_000):
        connection.sendall(body[start : start + 10_000])
        time.sleep(0.4)
    assert b"HTTP/1.1 422" in _head(connection)


def test_an_answer_that_is_not_taken_is_given_up(serve: Serve) -> None:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    address = serve(**SHORT)
    assert len(_get(address, "/openapi.json")) > 100_000
    connection.connect(address)
    connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200)

    def is_closed() -> bool:
        try:
            connection.send(b"G")
        except ConnectionError:
            return True
        return False

    until(is_closed, LONG_S)


@pytest.mark.parametrize(
    ("version", "length"), [("1.1", ["Content-Length: 5"]), ("1.0", [])], ids=["both", "old"]
)
def test_a_request_that_ends_in_two_places_is_answered_once_and_closed(
    serve: Serve, version: str, length: list[str]
) -> None:
    smuggled = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    lines = [
        f"POST /livez HTTP/{version}",
        "Host: x",
        *length,
        "Transfer-Encoding: chunked",
        "Connection: keep-alive",
        "",
        "",
    ]
    connection = _connect(serve(), "\r\n".join(lines).encode() + b"0\r\n\r\n" + smuggled)

    received = _rest(connection)

    assert received.count(b"HTTP/1.1 ") == 1
    assert _answer(received) == (400, "bad-request")


@pytest.mark.parametrize("head", [b"\x00\x16\r\n\r\n", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n"])
def test_what_is_not_http_is_a_problem_too(serve: Serve, head: bytes) -> None:
    assert _answer(_rest(_connect(serve(), head))) == (400, "bad-request")


@pytest.mark.parametrize("headers", [[], ["Idempotency-Key: k"]], ids=["once", "repeatable"])
@pytest.mark.parametrize(
    ("path", "length"), [("/v1/models", 60_000), ("/v1/forget-requests", 15_000_000)]
)
def test_who_lacks_a_scope_is_told_so_before_a_byte_of_the_body_comes(
    serve: Serve, services: Services, path: str, length: int, headers: list[str]
) -> None:
    key = _key(services, Scope.LOG_READ)
    announced = ["Content-Type: application/json", f"Content-Length: {length}", *headers]
    connection = _connect(serve(), _post(path, key, *announced))

    assert b"HTTP/1.1 403" in _head(connection)
    _rest(connection)  # and then it is closed: the body is not taken either


def test_a_refused_body_is_not_swallowed(serve: Serve, services: Services) -> None:
    key = _key(services, Scope.LOG_READ)
    announced = ["Content-Type: application/json", "Content-Length: 60000000"]
    connection = _connect(serve(), _post("/v1/plans", key, *announced))
    with pytest.raises(ConnectionError):
        connection.sendall(b" " * 60_000_000)


def _get(address: tuple[str, int], path: str = "/livez") -> bytes:
    with _connect(
        address, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    ) as c:
        return _rest(c)


def test_connections_are_limited_by_address_and_in_all(serve: Serve) -> None:
    for limit, expected in (
        ("max_connections_per_address", (429, "too-many-requests")),
        ("max_connections", (503, "overloaded")),
    ):
        address = serve(**{limit: 3})
        held = [_connect(address) for _ in range(3)]
        assert _answer(_rest(_connect(address))) == expected
        held.pop().close()
        until(lambda address=address: b"200 OK" in _get(address))


def test_a_trusted_proxy_may_hold_all_connections(serve: Serve) -> None:
    address = serve(max_connections_per_address=1, trusted_proxies=("127.0.0.0/8",))
    held = [_connect(address) for _ in range(3)]
    assert b"200 OK" in _get(address)
    assert len(held) == 3


def test_hundreds_of_half_sent_requests_end_and_the_service_goes_on(serve: Serve) -> None:
    address = serve(**SHORT, max_connections_per_address=500)
    held = [_connect(address, b"GET /livez HTTP/1.1\r\nHo") for _ in range(400)]
    assert b"200 OK" in _get(address)
    assert {_answer(_rest(connection))[0] for connection in held} == {408}


def test_waits_of_one_caller_are_limited(
    serve: Serve, services: Services, workshop: Workshop, admin_key: str
) -> None:
    workshop.define()
    run = f"/v1/runs/{workshop.lease().run_id}"
    address = serve(max_waits_per_caller=2)

    def wait(key: str, seconds: int = 60) -> socket.socket:
        call = _post(run, key, f"Prefer: wait={seconds}").replace(b"POST", b"GET", 1)
        return _connect(address, call)

    waits = [wait(admin_key) for _ in range(2)]
    until(lambda: b"HTTP/1.1 429" in _head(wait(admin_key, 0)))
    assert b"HTTP/1.1 200" in _head(wait(_key(services, Scope.MODELS_READ), 0))
    waits.pop().close()
    until(lambda: b"HTTP/1.1 200" in _head(wait(admin_key, 0)))


def test_all_bodies_together_are_limited(serve: Serve, admin_key: str, workshop: Workshop) -> None:
    address = serve(max_upload_bytes=100_000, max_json_bytes=1000, body_timeout_s=2 * LONG_S)
    head = f"PUT /v1/datasets/{DATASET}/records HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
    head += f"Authorization: Bearer {admin_key}\r\n\r\n"
    held = [_connect(address, head.encode() + b"x" * 99_000) for _ in range(3)]
    (answered, *_), _, _ = select.select(held, [], [], LONG_S)
    assert b"HTTP/1.1 503" in _head(answered)


def test_the_server_speaks_through_the_bounded_protocol(services: Services) -> None:
    options = server_options(services.settings)
    assert isinstance(options["http"].__self__, Connections)
    assert options["ws"] == "none"


def _key(services: Services, *scopes: Scope) -> str:
    with actor.acting_as(actor.OPERATOR), services.database.transaction() as session:
        return api_keys.create_key(session, name="k", scopes=list(scopes))[1]

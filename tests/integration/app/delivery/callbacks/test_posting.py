"""One attempt, against real servers that behave well, badly, and maliciously."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from httpcore import NetworkBackend, NetworkStream, SyncBackend

from app.delivery.callbacks.posting import Outcome, Poster, Result
from app.domain.errors import ConfigurationError
from tests.support.authority import Authority
from tests.support.receiver import Receiver, status

BODY = b'{"type":"test"}'
HEADERS = {"webhook-id": "evt_1"}


def poster(**options: object) -> Poster:
    return Poster(**{"timeout_s": 30.0, "allow_private": True, **options})  # type: ignore[arg-type]


def post(url: str, **options: object) -> Outcome:
    return poster(**options).post(url, HEADERS, BODY)


class Recording(NetworkBackend):
    """Notes where connections go, then makes them to this machine."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def connect_tcp(self, host: str, port: int, **options: object) -> NetworkStream:
        self.addresses.append(host)
        return SyncBackend().connect_tcp("127.0.0.1", port, **options)  # type: ignore[arg-type]


def test_the_body_and_the_headers_arrive(receiver: Receiver) -> None:
    assert post(receiver.url) == Outcome(Result.DELIVERED)

    (received,) = receiver.received
    assert received.path == "/callbacks?token=sesame-4711"
    assert received.body == BODY
    assert received.headers["webhook-id"] == "evt_1"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
def test_every_2xx_is_a_delivery(receiver: Receiver, code: int) -> None:
    receiver.answers.append(status(code))
    assert post(receiver.url).result is Result.DELIVERED


@pytest.mark.parametrize("code", [400, 401, 404, 429, 500, 503])
def test_other_answers_are_failures(receiver: Receiver, code: int) -> None:
    receiver.answers.append(status(code))
    assert post(receiver.url) == Outcome(Result.FAILED, f"it answered {code}")


def test_410_says_that_nobody_listens_any_more(receiver: Receiver) -> None:
    receiver.answers.append(status(410))
    assert post(receiver.url).result is Result.GONE


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(receiver: Receiver, code: int) -> None:
    with Receiver() as elsewhere:
        receiver.answers.append(status(code, Location=elsewhere.url))
        assert post(receiver.url) == Outcome(Result.FAILED, f"it answered {code}")
        assert elsewhere.received == []
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("120", 120, 120),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("-5", 0, 0),
        ("soon", 0, 0),
        ("99999999999999999999", 0, 0),
    ],
)
def test_a_receiver_may_ask_for_a_pause(
    receiver: Receiver, header: str, least: float, most: float
) -> None:
    receiver.answers.append(status(503, Retry_After=header))
    assert least <= post(receiver.url).retry_after_s <= most


def test_a_receiver_may_name_the_end_of_a_pause(receiver: Receiver) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    receiver.answers.append(status(503, Retry_After=format_datetime(until, usegmt=True)))
    assert 3500 <= post(receiver.url).retry_after_s <= 3600


def _never(receiver: Receiver) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda _: receiver.stopping.wait(30) and None


def _drop_by_drop(receiver: Receiver) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not receiver.stopping.wait(0.05):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    return answer


@pytest.mark.parametrize("slow", [_never, _drop_by_drop])
def test_no_receiver_takes_longer_than_it_may(
    receiver: Receiver, slow: Callable[[Receiver], Callable[[BaseHTTPRequestHandler], None]]
) -> None:
    receiver.answers.append(slow(receiver))
    started = time.monotonic()
    outcome = post(receiver.url, timeout_s=0.6)
    assert outcome == Outcome(Result.FAILED, "it took longer than 0.6 s")
    assert time.monotonic() - started < 25  # before the receiver would have answered


def test_an_endless_answer_is_cut(receiver: Receiver) -> None:
    sent = []

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        while not receiver.stopping.is_set():
            sent.append(handler.wfile.write(bytes(65536)))

    receiver.answers.append(endless)
    assert post(receiver.url, timeout_s=20.0).result is Result.DELIVERED
    assert sum(sent) < 100 * 1024**2


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 abc\r\n\r\n", b""])
def test_what_is_no_http_is_a_failure(receiver: Receiver, answer: bytes) -> None:
    def speak(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(answer)
        handler.close_connection = True

    receiver.answers.append(speak)
    assert post(receiver.url) == Outcome(Result.FAILED, "its answer is not HTTP")


def test_headers_without_end_are_a_failure(receiver: Receiver) -> None:
    def speak(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 10**6)

    receiver.answers.append(speak)
    assert post(receiver.url).result is Result.FAILED


def test_nobody_there_is_a_failure() -> None:
    with Receiver() as gone:
        url = gone.url
    assert post(url) == Outcome(Result.FAILED, "no connection can be made")


def test_proxies_of_the_environment_are_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{proxy.port}")
        assert post(receiver.url).result is Result.DELIVERED
        assert proxy.received == []


# Addresses


def test_an_address_that_is_refused_is_not_connected_to(receiver: Receiver) -> None:
    sockets = Recording()
    outcome = post(receiver.url, allow_private=False, sockets=sockets)
    assert outcome == Outcome(Result.FAILED, "its address is not a public one")
    assert sockets.addresses == []
    assert receiver.received == []


def test_a_name_that_changes_its_address_after_the_check_is_of_no_use(receiver: Receiver) -> None:
    """DNS rebinding: the first answer is public, every further one is this machine."""
    answers = iter(["8.8.8.8"])
    asked: list[str] = []

    def rebinding(host: str, _: int) -> list[str]:
        asked.append(host)
        return [next(answers, "127.0.0.1")]

    sockets = Recording()
    url = f"http://rebinding.example:{receiver.port}/"
    post(url, allow_private=False, resolve=rebinding, sockets=sockets)

    assert asked == ["rebinding.example"]
    assert sockets.addresses == ["8.8.8.8"]
    # The next attempt asks anew, and is refused.
    outcome = post(url, allow_private=False, resolve=rebinding, sockets=sockets)
    assert outcome.failure == "its address is not a public one"
    assert sockets.addresses == ["8.8.8.8"]


def test_where_private_addresses_are_allowed_public_ones_need_tls(receiver: Receiver) -> None:
    sockets = Recording()
    for addresses in (["8.8.8.8"], ["127.0.0.1", "8.8.8.8"]):
        outcome = post(
            f"http://public.example:{receiver.port}/",
            allow_private=True,
            resolve=lambda *_, found=addresses: found,
            sockets=sockets,
        )
        assert outcome.failure == "its address is public, and its URL has no TLS"
    assert sockets.addresses == []


def test_one_private_address_among_public_ones_refuses_the_name(receiver: Receiver) -> None:
    sockets = Recording()
    outcome = post(
        f"http://mixed.example:{receiver.port}/",
        allow_private=False,
        resolve=lambda *_: ["8.8.8.8", "127.0.0.1"],
        sockets=sockets,
    )
    assert (outcome.result, sockets.addresses) == (Result.FAILED, [])


def test_the_next_address_is_tried_when_one_does_not_answer(receiver: Receiver) -> None:
    outcome = post(
        f"http://two.example:{receiver.port}/", resolve=lambda *_: ["127.0.0.9", "127.0.0.1"]
    )
    assert outcome.result is Result.DELIVERED
    assert receiver.received[0].headers["host"] == f"two.example:{receiver.port}"


# TLS


def test_a_file_without_certificates_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("empty.pem", "nowhere.pem"):
        with pytest.raises(ConfigurationError, match=name):
            poster(ca_file=tmp_path / name)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_tls_is_with_the_name_although_the_address_is_pinned(authority: Authority) -> None:
    seen: list[str | None] = []
    with Receiver(tls=authority.server_context("receiver.example", seen)) as receiver:
        outcome = post(
            f"https://receiver.example:{receiver.port}/x",
            ca_file=authority.file,
            resolve=lambda *_: ["127.0.0.1"],
        )
        assert outcome.result is Result.DELIVERED
        assert seen == ["receiver.example"]
        assert receiver.received[0].headers["host"] == f"receiver.example:{receiver.port}"


def test_a_certificate_of_another_name_or_of_nobody_is_refused(authority: Authority) -> None:
    with Receiver(tls=authority.server_context("other.example", [])) as receiver:
        for trusted, name in ((authority.file, "receiver.example"), (None, "other.example")):
            outcome = post(
                f"https://{name}:{receiver.port}/x",
                ca_file=trusted,
                resolve=lambda *_: ["127.0.0.1"],
            )
            assert outcome.failure == "TLS failed, or its certificate is not valid"
        assert receiver.received == []

"""The client against a service that goes away and comes back."""

import random
from pathlib import Path

import httpx
import pytest

from app.client import ApiError, ExpungeClient
from app.client.configured import configured_client
from app.domain.errors import ConfigurationError
from app.runtime.outgoing import Retry

DONE = {"id": "fr_1", "state": "completed", "obligations": []}
MODEL = {"name": "m", "latest_run": {"state": "published"}}


def client(*answers: httpx.Response | Exception) -> ExpungeClient:
    left = list(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        following = left.pop(0)
        if isinstance(following, Exception):
            raise following
        return following

    return ExpungeClient("http://test", "key", transport=httpx.MockTransport(answer))


def away() -> list[httpx.Response | Exception]:
    return [
        httpx.ConnectError("refused"),
        httpx.Response(503, json={"detail": "starting"}),
        httpx.Response(429, json={"detail": "too many calls"}),
    ]


def test_waiting_for_a_request_outlasts_a_restart() -> None:
    waiting = client(*away(), httpx.Response(200, json=DONE))

    assert waiting.wait_for_request("fr_1", timeout_s=10) == DONE


def test_waiting_for_a_model_outlasts_a_restart() -> None:
    waiting = client(*away(), httpx.Response(200, json=MODEL))

    assert waiting.wait_for_model("m", timeout_s=10) == MODEL


def test_waiting_does_not_outlast_a_refusal() -> None:
    waiting = client(httpx.Response(404, json={"detail": "no such request"}))

    with pytest.raises(ApiError, match="no such request"):
        waiting.wait_for_request("fr_1", timeout_s=10)


def test_waiting_ends_when_the_time_is_up() -> None:
    waiting = client(*(httpx.Response(503) for _ in range(20)))

    with pytest.raises(TimeoutError):
        waiting.wait_for_request("fr_1", timeout_s=0.5)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a/../../models/b", "a%2F..%2F..%2Fmodels%2Fb"),
        ("50%2F", "50%252F"),
        ("two words?state=x#y", "two%20words%3Fstate%3Dx%23y"),
        ("été", "%C3%A9t%C3%A9"),
        ("..", "%2E%2E"),
        ("plain-name.v2", "plain-name.v2"),
    ],
)
def test_a_name_never_leads_to_another_resource(name: str, path: str) -> None:
    called: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        called.append(request.url.raw_path.decode())
        return httpx.Response(200, json={})

    with ExpungeClient("http://test", "key", transport=httpx.MockTransport(answer)) as client:
        client.dataset(name)
        client.archive_model(name)
        client.delete_dataset(name)
    assert called == [f"/v1/datasets/{path}", f"/v1/models/{path}/archive", f"/v1/datasets/{path}"]


@pytest.mark.parametrize("url", ["", "localhost:8100", "ftp://test"])
def test_a_url_that_is_none_of_a_service_is_named(url: str) -> None:
    with pytest.raises(ConfigurationError, match="http://"):
        ExpungeClient(url, "key")


@pytest.mark.parametrize("key", ["", "schlüssel", "a\nkey", "a key"])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ExpungeClient("http://test", key)
    assert str(refused.value) == "the API key is empty, or has characters that no key has"


@pytest.mark.parametrize(("mode", "told"), [(None, "expunge init"), (0o644, "chmod 600")])
def test_a_key_that_cannot_be_used_is_named_with_what_to_do(
    mode: int | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_DATA_DIR", str(tmp_path))
    file = tmp_path / "keys" / "admin-api-key"
    if mode is not None:
        file.parent.mkdir()
        file.write_text("xpg_secret")
        file.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"{file} .*{told}.*EXPUNGE_API_KEY"):
        configured_client()


def test_a_file_is_sent_in_pieces_and_whole_again_by_a_retry() -> None:
    content = random.Random(0).randbytes(1_000_000)
    seen: list[tuple[int, bytes, str | None]] = []
    keys = set()

    class Once(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.SyncByteStream)
            pieces = [bytes(piece) for piece in request.stream]
            keys.add(request.headers["idempotency-key"])
            length = request.headers.get("content-length")
            seen.append((max(map(len, pieces)), b"".join(pieces), length))
            return httpx.Response(503 if len(seen) == 1 else 200, json={})

    retry = Retry(sleep=lambda _: None)
    pushing = ExpungeClient("http://test", "key", retry=retry, transport=Once())
    pushing.push_records("people", content)

    assert [largest < 1_000_000 for largest, _, _ in seen] == [True, True]
    assert [(sent, length) for _, sent, length in seen] == [(content, "1000000")] * 2
    assert len(keys) == 1

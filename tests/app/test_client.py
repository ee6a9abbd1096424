"""The client against a service that goes away and comes back."""

import httpx
import pytest

from app.client import ApiError, ExpungeClient

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

"""Server-sent events of a run, over a real socket."""

import json
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI

from app.api import events
from app.cli.application import create_app
from app.client import ApiError, ExpungeClient
from app.services import Services
from tests.support.patience import PATIENCE_S, until
from tests.support.serving import serve
from tests.support.workshop import Workshop


@pytest.fixture
def app(services: Services) -> FastAPI:
    return create_app(services)


@pytest.fixture
def served(app: FastAPI, admin_key: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {admin_key}"}
    with (
        serve(app) as url,
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as client,
    ):
        yield client


class Events:
    """Reads events one by one, as the standard says."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.iter_lines()
        self.comments = 0

    def __iter__(self) -> Iterator[dict]:
        event: dict = {}
        for line in self._lines:
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif event:
                yield {**event, "data": json.loads(event["data"])}
                event = {}


def _follow(client: httpx.Client, run_id: str, last: str | None = None):
    headers = {} if last is None else {"Last-Event-ID": last}
    return client.stream("GET", f"/v1/runs/{run_id}/events", headers=headers)


def test_a_run_is_followed_to_its_end(served: httpx.Client, workshop: Workshop) -> None:
    workshop.define()
    held = workshop.lease()
    seen = []
    with _follow(served, held.run_id) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        for number, event in enumerate(Events(answer)):
            seen.append((event["event"], event["data"]))
            if number == 0:
                workshop.begin(held)
            elif number == 1:
                workshop.beat(held, phase="noisy", step=3, total_steps=9, epsilon=2.5)
            elif number == 2:
                workshop.beat(held, phase="polish", step=9, epsilon=1.0, loss=float("nan"))
            elif number == 3:
                workshop.give_up(held, "out of memory: use a smaller batch_size")

    assert [name for name, _ in seen] == ["progress"] * 4 + ["end"]
    assert [data["state"] for _, data in seen] == [
        "leased", "running", "running", "running", "failed",
    ]  # fmt: skip
    third, fourth, last = (data for _, data in seen[2:])
    assert (third["phase"], third["step"], third["total_steps"]) == ("noisy", 3, 9)
    assert (third["epsilon"], third["loss"]) == (2.5, None)
    assert (fourth["epsilon"], fourth["loss"]) == (1.0, None)
    assert last["failure_reason"] == "out of memory: use a smaller batch_size"


def test_who_comes_back_is_told_only_what_is_new(served: httpx.Client, workshop: Workshop) -> None:
    workshop.define()
    held = workshop.lease()
    with _follow(served, held.run_id) as answer:
        first = next(iter(Events(answer)))
    workshop.begin(held)

    with _follow(served, held.run_id, last=first["id"]) as answer:
        second = next(iter(Events(answer)))
    with _follow(served, held.run_id, last=second["id"]) as answer:
        workshop.give_up(held)
        (last,) = Events(answer)

    assert (second["data"]["state"], last["data"]["state"]) == ("running", "failed")
    assert (
        served.get(
            f"/v1/runs/{held.run_id}/events", headers={"Last-Event-ID": last["id"]}
        ).status_code
        == 204
    )


def test_the_client_follows_a_run(served: httpx.Client, workshop: Workshop, admin_key: str) -> None:
    workshop.define()
    held = workshop.lease()
    states = []
    with ExpungeClient(str(served.base_url), admin_key) as client:
        for progress in client.follow_run(held.run_id):
            states.append(progress["state"])
            if len(states) == 1:
                workshop.give_up(held)
        with pytest.raises(ApiError, match="no run"):
            next(client.follow_run("nothing"))
        assert client.run(held.run_id, wait_s=50)["state"] == "failed"

    assert states == ["leased", "failed"]


def test_a_run_that_has_ended_is_one_event(served: httpx.Client, workshop: Workshop) -> None:
    workshop.define()
    workshop.work()
    run_id = served.get("/v1/models/model").json()["latest_run"]["id"]

    with _follow(served, run_id) as answer:
        (only,) = Events(answer)

    assert (only["event"], only["data"]["state"]) == ("end", "published")


def test_silence_is_filled_with_comments(
    served: httpx.Client, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_KEEP_ALIVE_S", 0.05)
    workshop.define()
    held = workshop.lease()
    with _follow(served, held.run_id) as answer:
        stream = Events(answer)
        following = iter(stream)
        next(following)
        until(lambda: next(answer_lines(stream)).startswith(":"))


def answer_lines(stream: Events) -> Iterator[str]:
    return (line for line in stream._lines if line)


def test_who_hangs_up_is_forgotten(app: FastAPI, served: httpx.Client, workshop: Workshop) -> None:
    workshop.define()
    with _follow(served, workshop.lease().run_id) as answer:
        following = iter(Events(answer))
        next(following)
        assert len(app.state.watcher._watches) == 1

    until(lambda: not app.state.watcher._watches)


def test_a_stream_ends_when_the_process_stops(
    app: FastAPI, served: httpx.Client, workshop: Workshop
) -> None:
    workshop.define()
    with _follow(served, workshop.lease().run_id) as answer:
        following = iter(Events(answer))
        next(following)
        app.state.watcher.close()
        assert list(following) == []


def test_a_run_that_is_not_there(served: httpx.Client) -> None:
    answer = served.get("/v1/runs/nothing/events")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:expunge:problem:not-found")

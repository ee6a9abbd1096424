"""``Prefer: wait``: answers that come with the news, and waiters that hold nothing."""

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from app.access import api_keys
from app.api.protocol import waiting
from app.api.protocol.waiting import Watcher, wait_of
from app.cli.application import create_app
from app.client import ExpungeClient
from app.domain.states import Scope
from app.ledger.views.changes import Kind, facts_of
from app.registry.datasets.imports import service as imports
from app.runtime.locations import redis_connection
from app.services import Services
from tests.integration.app.api.conftest import CallerOf
from tests.support.patience import PATIENCE_S, until
from tests.support.serving import serve
from tests.support.threads import none_can_be_started
from tests.support.workshop import DATASET, Workshop

WAIT = {"Prefer": "wait=50"}


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


@pytest.fixture
def request_path(workshop: Workshop) -> str:
    """A request that waits for its run."""
    workshop.train()
    return f"/v1/forget-requests/{workshop.forget(workshop.split()[0][0])}"


def _waiters(app: FastAPI) -> int:
    return len(app.state.watcher._watches)


def _meanwhile(
    app: FastAPI, call: Callable[[], httpx.Response], change: Callable[[], object]
) -> httpx.Response:
    """Make a call, change something once it waits, and return the call's answer."""
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    until(lambda: _waiters(app) == 1)
    assert not answers
    change()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert _waiters(app) == 0
    return answers[0]


def test_an_answer_comes_with_the_new_state(
    app: FastAPI, served: httpx.Client, request_path: str
) -> None:
    answer = _meanwhile(
        app,
        lambda: served.get(request_path, headers=WAIT),
        lambda: served.delete(request_path),
    )

    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert answer.headers["preference-applied"] == "wait=50"


def test_an_obligation_is_news_too(
    app: FastAPI, served: httpx.Client, workshop: Workshop, request_path: str
) -> None:
    def begin() -> None:
        workshop.dispatch()
        workshop.begin(workshop.lease())

    answer = _meanwhile(app, lambda: served.get(request_path, headers=WAIT), begin)

    assert answer.json()["obligations"][0]["run"] is not None


def test_a_run_is_followed_to_its_end(
    app: FastAPI, served: httpx.Client, workshop: Workshop, admin_key: str
) -> None:
    workshop.define()
    held = workshop.lease()
    path = f"/v1/runs/{held.run_id}"
    changes = (
        lambda: workshop.begin(held),
        lambda: workshop.beat(held, phase="noisy", step=3, total_steps=9, epsilon=2.5),
        lambda: workshop.beat(held, phase="polish", step=9, epsilon=1.0, loss=float("nan")),
        lambda: workshop.give_up(held, "out of memory: use a smaller batch_size"),
    )
    answer = served.get(path, headers=WAIT | {"If-None-Match": '"none yet"'})
    seen = [answer.json()]
    for change in changes:
        known = WAIT | {"If-None-Match": answer.headers["etag"]}
        _meanwhile(app, lambda known=known: served.get(path, headers=known), change)
        answer = served.get(path)  # a change may be several commits, each of which is news
        seen.append(answer.json())

    assert [run["state"] for run in seen] == ["leased", *["running"] * 3, "failed"]
    progress = [[run[name] for name in ("phase", "step", "epsilon", "loss")] for run in seen[2:4]]
    assert progress == [["noisy", 3, 2.5, None], ["polish", 9, 1.0, None]]
    assert seen[-1]["failure_reason"] == "out of memory: use a smaller batch_size"
    last = served.get(path, headers=WAIT | {"If-None-Match": answer.headers["etag"]})
    assert (last.status_code, last.elapsed.total_seconds() < 25) == (304, True)


def test_an_import_is_waited_for(
    app: FastAPI, served: httpx.Client, workshop: Workshop, services: Services
) -> None:
    with workshop.transaction() as session:
        row = imports.request(
            session, dataset=DATASET, url="s3://exports/x.parquet", prefixes=["s3://exports/"]
        )
        path = f"/v1/datasets/{DATASET}/imports/{row.id}"

    answer = _meanwhile(
        app, lambda: served.get(path, headers=WAIT), lambda: served.post(f"{path}/cancel")
    )

    assert answer.json()["state"] == "cancelled"


def test_a_page_waits_as_a_program_does(
    app: FastAPI, served: httpx.Client, workshop: Workshop, services: Services, admin_key: str
) -> None:
    """With its session in place of a key; when that ends, it is told nothing more."""
    workshop.define()
    held = workshop.lease()
    with httpx.Client(base_url=served.base_url, timeout=PATIENCE_S) as page:
        token = re.findall(r'name="token" value="(\w+)"', page.get("/login").text)[0]
        page.post("/login", data={"token": token, "key": admin_key})
        for path in (f"/runs/{held.run_id}/progress", "/runs/progress"):
            known = WAIT | {"If-None-Match": page.get(path).headers["etag"]}
            step = 3 + len(path)
            answer = _meanwhile(
                app,
                lambda path=path, known=known: page.get(path, headers=known),
                lambda step=step: workshop.beat(held, step=step),
            )
            assert answer.status_code == 200
            assert f'"step":{step},' in answer.text

        def end_session() -> None:
            redis_connection(services.settings).flushdb()
            workshop.beat(held, step=1)

        refused = _meanwhile(app, lambda: page.get("/runs/progress", headers=WAIT), end_session)
    assert (refused.status_code, refused.headers["location"]) == (303, "/login")


def test_a_revoked_key_is_told_nothing_more(
    app: FastAPI, served: httpx.Client, workshop: Workshop, services: Services
) -> None:
    workshop.define()
    held = workshop.lease()
    with workshop.transaction() as session:
        row, secret = api_keys.create_key(session, name="s", scopes=[Scope.MODELS_READ])
    headers = {"Authorization": f"Bearer {secret}", **WAIT}

    def revoke_and_begin() -> None:
        with workshop.transaction() as session:
            api_keys.revoke(session, row.id)
        workshop.begin(held)

    answer = _meanwhile(
        app, lambda: served.get(f"/v1/runs/{held.run_id}", headers=headers), revoke_and_begin
    )

    assert answer.status_code == 401


def test_the_client_waits_for_a_request_and_shows_its_run(
    app: FastAPI, served: httpx.Client, workshop: Workshop, request_path: str, admin_key: str
) -> None:
    workshop.dispatch()
    held = workshop.lease()
    changes: list[Callable[[], object]] = [
        lambda: workshop.begin(held),
        lambda: workshop.beat(held, phase="noisy", step=3, total_steps=9),
        lambda: workshop.publish(held),
        workshop.services.clean_up,
    ]
    seen: list[tuple[str, str | None, int | None]] = []
    made: list[Future[None]] = []

    def note(request: dict, run: dict | None) -> None:
        seen.append((request["state"], run and run["state"], run and run["step"]))
        if changes:
            made.append(one_by_one.submit(later, changes.pop(0)))

    def later(change: Callable[[], object]) -> None:
        time.sleep(0.2)
        change()

    with (
        ThreadPoolExecutor(max_workers=1) as one_by_one,
        ExpungeClient(str(served.base_url), admin_key) as client,
    ):
        request_id = request_path.rpartition("/")[2]
        ended = client.wait_for_request(request_id, timeout_s=PATIENCE_S, on_change=note)

    assert ended["state"] == "completed"
    assert not any(each.exception() for each in made)
    assert ("unlearning", "running", 3) in seen
    assert len(seen) <= 12  # it is told, and does not ask again and again


def test_a_model_is_waited_for(app: FastAPI, served: httpx.Client, workshop: Workshop) -> None:
    workshop.define()

    answer = _meanwhile(app, lambda: served.get("/v1/models/model", headers=WAIT), workshop.lease)

    assert answer.json()["latest_run"]["state"] == "leased"


def test_nobody_waits_for_what_has_ended(served: httpx.Client, workshop: Workshop) -> None:
    body = {"dataset": "people", "record_ids": ["record-1"]}
    request = served.post("/v1/forget-requests", json=body).headers["location"]
    workshop.services.clean_up()

    answer = served.get(request, headers={"Prefer": "respond-async, wait=1000000; x=1"})

    assert answer.json()["state"] == "completed"
    assert answer.elapsed.total_seconds() < 25
    assert answer.headers["preference-applied"] == "wait=60"


def test_without_news_the_answer_comes_when_the_time_is_over(
    api: TestClient, request_path: str
) -> None:
    first = api.get(request_path)
    held = {"If-None-Match": first.headers["etag"]}

    same = api.get(request_path, headers={"Prefer": "wait=1"})
    known = api.get(request_path, headers={"Prefer": "wait=1", **held})

    assert same.json() == first.json()
    assert (known.status_code, known.headers["preference-applied"]) == (304, "wait=1")


def test_who_missed_something_is_told_at_once(
    app: FastAPI, served: httpx.Client, request_path: str
) -> None:
    """A change between two calls is not waited for again."""
    answer = served.get(request_path, headers={**WAIT, "If-None-Match": '"of an older answer"'})

    assert (answer.status_code, answer.json()["state"]) == (200, "accepted")
    assert answer.elapsed.total_seconds() < 25


def test_who_hangs_up_is_not_waited_for(
    app: FastAPI, served: httpx.Client, request_path: str
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        served.get(request_path, headers=WAIT, timeout=httpx.Timeout(PATIENCE_S, read=1))

    until(lambda: _waiters(app) == 0)
    until(lambda: app.state.watcher._thread is None)


def test_who_waits_is_answered_when_the_process_stops(
    app: FastAPI, served: httpx.Client, request_path: str
) -> None:
    answer = _meanwhile(
        app, lambda: served.get(request_path, headers=WAIT), app.state.watcher.close
    )
    assert answer.json()["state"] == "accepted"
    assert served.get(request_path, headers=WAIT).elapsed.total_seconds() < 25


@pytest.mark.parametrize(
    "error", [OperationalError("SELECT 'secret'", {}, Exception("secret")), OSError("unexpected")]
)
def test_a_database_that_is_away_for_a_while_is_waited_for(
    app: FastAPI, served: httpx.Client, services: Services, request_path: str, error: Exception
) -> None:
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise error

    def change() -> None:
        event.listen(services.database.engine, "before_cursor_execute", fail)
        assert failed.wait(PATIENCE_S)
        event.remove(services.database.engine, "before_cursor_execute", fail)
        served.delete(request_path)

    answer = _meanwhile(app, lambda: served.get(request_path, headers=WAIT), change)

    assert answer.json()["state"] == "cancelled"


def test_many_waiters_hold_neither_threads_nor_connections(
    app: FastAPI, served: httpx.Client, services: Services, request_path: str, admin_key: str
) -> None:
    async def poll_together(count: int) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=count)
        headers = {"Authorization": f"Bearer {admin_key}", **WAIT}
        async with httpx.AsyncClient(
            base_url=served.base_url, limits=limits, timeout=PATIENCE_S, headers=headers
        ) as client:
            polls = [asyncio.create_task(client.get(request_path)) for _ in range(count)]
            async with asyncio.timeout(PATIENCE_S):
                while _waiters(app) < count or services.database.engine.pool.checkedout() > 1:
                    await asyncio.sleep(0.05)
            assert threading.active_count() < 60
            await asyncio.to_thread(served.delete, request_path)
            return await asyncio.gather(*polls)

    answers = asyncio.run(poll_together(100))

    assert {answer.json()["state"] for answer in answers} == {"cancelled"}


def test_waits_of_one_caller_are_limited(
    app: FastAPI,
    workshop: Workshop,
    admin_key: str,
    caller_of: CallerOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workshop.define()
    run = f"/v1/runs/{workshop.lease().run_id}"
    monkeypatch.setattr(waiting, "MOST_WAITS", 2)
    key = {"Authorization": f"Bearer {admin_key}"}
    other = {"Authorization": caller_of(Scope.MODELS_READ).headers["authorization"]}
    with serve(app) as url, ExitStack() as waits:

        def wait() -> socket.socket:
            head = f"GET {run} HTTP/1.1\r\nHost: x\r\nPrefer: wait=60\r\n"
            head += f"Authorization: Bearer {admin_key}\r\n\r\n"
            address = ("127.0.0.1", int(url.rpartition(":")[2]))
            caller = waits.enter_context(socket.create_connection(address, PATIENCE_S))
            caller.sendall(head.encode())
            return caller

        def status(headers: dict[str, str]) -> int:
            headers = {"Prefer": "wait=0", **headers}
            return httpx.get(url + run, headers=headers, timeout=PATIENCE_S).status_code

        first, _ = wait(), wait()
        until(lambda: status(key) == 429)
        assert status(other) == 200
        first.close()
        until(lambda: status(key) == 200)
        app.state.watcher.close()


def test_what_is_not_there_and_who_may_not(served: httpx.Client, app: FastAPI) -> None:
    assert served.get("/v1/forget-requests/nothing", headers=WAIT).status_code == 404
    assert TestClient(app).get("/v1/runs/nothing", headers=WAIT).status_code == 401


@pytest.mark.parametrize(
    ("prefer", "wait_s"),
    [
        ("wait=30", 30),
        ('Wait = "5"', 5),
        ("return=minimal, wait=7;a=b", 7),
        ("wait=61", 60),
        ("wait=0", 0),
        ("wait=-1", None),
        ("wait=1.5", None),
        ("wait=" + "9" * 400, None),
        ("wait", None),
        ("waiting=3", None),
        (None, None),
    ],
)
def test_preferences_that_are_not_understood_are_ignored(
    prefer: str | None, wait_s: int | None
) -> None:
    assert wait_of(prefer) == wait_s


def test_an_entry_of_the_log_wakes_waiters_at_once(services: Services, workshop: Workshop) -> None:
    watcher = Watcher(services.database, interval_s=10 * PATIENCE_S)
    workshop.define()
    run_id = workshop.active_run() or ""

    async def wait() -> bool:
        with services.database.transaction() as session:
            seen = facts_of(session, Kind.RUN, [run_id])[run_id]
        with watcher.watch(Kind.RUN, run_id, seen, caller_id="a") as watch:
            await asyncio.to_thread(until, lambda: watcher._wake_ups._connection is not None)
            await asyncio.to_thread(workshop.lease)
            return await asyncio.wait_for(watch.news.wait(), PATIENCE_S)

    assert asyncio.run(wait())


def test_a_watcher_outlives_the_event_loops_of_its_waiters(services: Services) -> None:
    """Waiters whose loop was torn down are dropped, and the others are served."""
    watcher = Watcher(services.database, interval_s=0.01)
    abandoned = watcher.watch(Kind.RUN, "run_1", ("queued", 0), caller_id="a")

    async def abandon() -> None:
        abandoned.__enter__()

    asyncio.run(abandon())

    async def wait() -> bool:
        with watcher.watch(Kind.RUN, "run_2", ("queued", 0), caller_id="a") as watch:
            return await asyncio.wait_for(watch.news.wait(), PATIENCE_S)

    assert asyncio.run(wait())
    until(lambda: not watcher._watches)


def test_without_a_thread_for_it_nobody_waits_until_there_is_one(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MOST_WAITS", 1)
    watcher = Watcher(services.database, interval_s=0.01)

    async def wait() -> bool:
        with watcher.watch(Kind.RUN, "run_1", ("queued", 0), caller_id="a") as watch:
            return await asyncio.wait_for(watch.news.wait(), PATIENCE_S)

    with none_can_be_started(), pytest.raises(RuntimeError, match="new thread"):
        asyncio.run(wait())
    assert asyncio.run(wait())

"""The client against a real service behind a network and a proxy that fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from app.cli.application import create_app
from app.client import ApiError, ExpungeClient
from app.ledger.tables import ForgetRequestRow
from app.registry.datasets.tables import DatasetRow
from app.runtime.outgoing import Retry
from app.services import Services
from tests.support.digits import DATASET, digits_parquet
from tests.support.patience import PATIENCE_S
from tests.support.serving import Flaky, serve


class Place:
    """A client, what stands between it and the service, and how long the client has waited."""

    def __init__(self, client: ExpungeClient, flaky: Flaky, pauses: list[float]) -> None:
        self.client = client
        self.flaky = flaky
        self.pauses = pauses

    def define(self) -> dict:
        return self.client.define_dataset(**DATASET)

    @property
    def keys(self) -> list[str | None]:
        return [headers.get("idempotency-key") for _, _, headers in self.flaky.seen]


@pytest.fixture
def place(services: Services, admin_key: str) -> Iterator[Place]:
    with _place(services, admin_key, attempts=5) as place:
        yield place


@contextmanager
def _place(services: Services, key: str, attempts: int) -> Iterator[Place]:
    flaky = Flaky(create_app(services))
    pauses: list[float] = []
    retry = Retry(attempts=attempts, sleep=pauses.append)
    with serve(flaky) as url, ExpungeClient(url, key, retry=retry) as client:
        yield Place(client, flaky, pauses)


@pytest.mark.parametrize("fault", [429, 502, 503, 504, "before", "after"])
def test_a_call_outlasts_a_fault(place: Place, fault: int | str) -> None:
    place.define()
    place.flaky.faults = [fault]

    assert place.client.dataset("digits")["name"] == "digits"
    assert len(place.pauses) == 1


@pytest.mark.parametrize("fault", [502, "before", "after"])
def test_a_post_is_sent_again_under_the_same_key(place: Place, fault: int | str) -> None:
    place.flaky.faults = [fault, fault]

    assert place.define()["name"] == "digits"
    assert len(place.flaky.seen) == 3
    assert len(set(place.keys)) == 1
    assert place.keys[0]


def test_an_answer_that_was_lost_leaves_one_request(place: Place, services: Services) -> None:
    place.define()
    place.client.push_records("digits", digits_parquet())
    place.flaky.faults = ["after", "after"]

    request = place.client.forget("digits", record_ids=["record-1"])

    with services.database.transaction() as session:
        assert list(session.scalars(select(ForgetRequestRow.id))) == [request["id"]]


def test_calls_have_keys_of_their_own_unless_they_are_given(place: Place) -> None:
    place.define()
    place.define()
    place.client.push_records("digits", digits_parquet())
    for _ in range(2):
        place.client.forget("digits", record_ids=["record-1"], idempotency_key="mine")

    first, second, put, third, fourth = place.keys
    assert len({first, second, put, None}) == 4
    assert third == fourth == "mine"


def test_records_that_are_sent_again_are_added_once(place: Place) -> None:
    place.define()
    place.flaky.faults = ["after", 503]

    place.client.push_records("digits", digits_parquet())

    assert place.client.dataset("digits")["records"] == 300


@pytest.mark.parametrize("status", [400, 401, 404, 409, 410, 422, 500, 501])
def test_other_answers_are_taken_as_they_are(place: Place, status: int) -> None:
    place.flaky.faults = [status]

    with pytest.raises(ApiError) as raised:
        place.client.datasets()
    assert raised.value.status == status
    assert len(place.flaky.seen) == 1


def test_what_is_in_flight_is_asked_for_again(place: Place) -> None:
    place.flaky.faults = [409]
    place.flaky.headers = [(b"retry-after", b"1")]

    assert place.define()["name"] == "digits"


def test_a_pause_is_as_long_as_the_service_asks(place: Place) -> None:
    place.flaky.faults = [503, 429]
    place.flaky.headers = [(b"retry-after", b"7")]

    place.client.datasets()

    assert len(place.pauses) == 2
    assert min(place.pauses) >= 7


def test_a_pause_that_is_too_long_is_the_callers_to_make(place: Place) -> None:
    place.flaky.faults = [429]
    place.flaky.headers = [(b"retry-after", b"3600")]

    with pytest.raises(ApiError) as raised:
        place.client.datasets()
    assert raised.value.retry_after_s == 3600
    assert not place.pauses


def test_attempts_are_counted(place: Place) -> None:
    place.flaky.faults = [503] * 20

    with pytest.raises(ApiError, match="503"):
        place.client.datasets()
    assert len(place.flaky.seen) == 5
    assert all(pause <= 0.25 * 2**n for n, pause in enumerate(place.pauses))


def test_without_patience_nothing_is_tried_again(services: Services, admin_key: str) -> None:
    with _place(services, admin_key, attempts=1) as place:
        place.flaky.faults = ["before", None]

        with pytest.raises(httpx.TransportError):
            place.define()
        assert len(place.flaky.seen) == 1
    with services.database.transaction() as session:
        assert session.scalar(select(func.count()).select_from(DatasetRow)) == 0


def test_an_error_carries_its_problem(place: Place) -> None:
    with pytest.raises(ApiError) as raised:
        place.client.dataset("missing")

    error = raised.value
    assert error.status == 404
    assert error.type == "urn:expunge:problem:not-found"
    assert error.title == "Not found"
    assert error.detail == str(error) == error.problem["detail"]
    assert error.retry_after_s is None


def test_waiting_asks_the_service_to_hold_its_answer(place: Place, services: Services) -> None:
    place.define()
    place.client.push_records("digits", digits_parquet())
    request = place.client.forget("digits", record_ids=["record-1"])

    def on_change(seen: dict[str, Any], _run: dict[str, Any] | None) -> None:
        if seen["state"] != "completed":
            services.clean_up()  # as the dispatcher does at each tick

    place.client.wait_for_request(request["id"], timeout_s=PATIENCE_S, on_change=on_change)
    assert place.flaky.seen[-1][2]["prefer"].startswith("wait=")

"""What is wrong with a table, a task or a network is said before anything is sent."""

from typing import Any

import httpx
import pyarrow as pa
import pytest
from torch import nn

import expunge
from app.domain.errors import InvalidInputError, TableError
from app.runtime.outgoing import Retry
from expunge.registration import Registered

TABLE = pa.table(
    {
        "row": ["r1", "r2", "r3"],
        "fee": [1.5, 2.5, 3.5],
        "plan": ["basic", "plus", "plus"],
        "left": [True, False, True],
    }
)


def _sent(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"{request.method} {request.url} was sent")


@pytest.fixture
def service() -> expunge.Client:
    """A service that must not be called."""
    transport = httpx.MockTransport(_sent)
    return expunge.Client("http://service", "key", retry=Retry(attempts=1), transport=transport)


def _register(service: expunge.Client, data: Any = TABLE, **changes: Any) -> Registered:
    given: dict[str, Any] = {
        "model": nn.Linear(1, 2),
        "name": "leaving",
        "inputs": ["fee"],
        "target": "left",
        "record_id": "row",
        **changes,
    }
    return expunge.register(given.pop("model"), data, client=service, **given)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": [[1, 2]]}, "pandas.DataFrame or a pyarrow.Table, not list"),
        ({"inputs": ["rent"]}, "the table has no column 'rent'"),
        ({"target": "plan"}, "name the classes of 'plan'"),
        ({"record_id": "id"}, "the table has no column 'id'"),
        ({"record_id": None}, "record-id"),
        ({"data": TABLE.slice(0, 0)}, "the table has no rows"),
        ({"model": nn.Linear(2, 2)}, "the first layer takes 2"),
        ({"task": "divination"}, "divination|task"),
    ],
)
def test_it_is_refused(service: expunge.Client, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        _register(service, **changes)


def test_two_rows_of_one_id_are_refused(service: expunge.Client) -> None:
    twice = pa.concat_tables([TABLE, TABLE])
    with pytest.raises(TableError, match="row 4"):
        _register(service, twice)


def test_a_good_table_is_sent(service: expunge.Client) -> None:
    """So that the refusals above are not those of the transport."""
    with pytest.raises(AssertionError, match="POST http://service/v1/datasets was sent"):
        _register(service)


def test_one_text_is_no_list_of_ids(service: expunge.Client) -> None:
    model = Registered(
        service, "leaving", "leaving", by_subject=True, trusted=b"", factories=(), timeout_s=1
    )
    with pytest.raises(InvalidInputError, match="a list of ids"):
        model.forget("customer-7")

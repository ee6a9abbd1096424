"""Datasets of typed columns over HTTP."""

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from app.registry.datasets.columns.parquet import to_parquet
from app.services import Services
from tests.support import layouts

COLUMNS = {"age": "int16?", "photo": "binary", "vector": "list< float32,2 >"}
KEPT = COLUMNS | {"vector": "list<float32, 2>"}
BODY = {"name": "photos", "columns": COLUMNS, "record_id": "id", "subject_id": "person"}


def _rows(**changed: list) -> bytes:
    columns = {"id": ["a", "b"], "person": ["x", None], "age": [20, None]}
    lists = {"photo": [b"\xff\xd8", b""], "vector": [[0.5, 1.0], [2.0, 3.0]]}
    return to_parquet(pa.table(columns | lists | changed))


def _refused(answer: httpx.Response, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert words in answer.text


def test_from_the_definition_to_forgetting(api: TestClient, services: Services) -> None:
    assert api.post("/v1/datasets", json=BODY).status_code == 201
    shown = api.get("/v1/datasets/photos").json()
    expected = {"columns": KEPT, "record_id": "id", "subject_id": "person"}
    assert {key: shown[key] for key in expected} == expected
    assert api.post("/v1/datasets", json=BODY | {"columns": KEPT}).status_code == 201
    assert [each["name"] for each in api.get("/v1/datasets").json()["items"]] == ["photos"]

    push = "/v1/datasets/photos/records"
    assert api.put(push, content=_rows()).json()["added"] == 2
    changed = api.put(push, content=_rows(age=[20, 21])).json()
    assert (changed["already_present"], changed["changed_rows"]) == (1, [1])
    asked = {"dataset": "photos", "subject_ids": ["x"]}
    request = api.post("/v1/forget-requests", json=asked).json()
    assert (request["records"], request["state"]) == (1, "certified")
    services.clean_up()
    assert api.put(push, content=_rows()).json()["added"] == 1
    assert api.get("/v1/datasets/photos").json()["erased"] == 1


def test_faults_are_named_by_row_and_column(api: TestClient) -> None:
    api.post("/v1/datasets", json=BODY)
    answer = api.put("/v1/datasets/photos/records", content=_rows(age=[1, 70000]))
    _refused(answer, 422, "invalid-records")
    (problem,) = answer.json()["problems"]
    assert (problem["row"], problem["column"]) == (1, "age")
    assert "70000" not in answer.text


@pytest.mark.parametrize("layout", layouts.IN_PARQUET)
def test_rows_in_another_layout_are_the_same_rows(api: TestClient, layout: str) -> None:
    """As polars (views), DuckDB (decimals) and pandas (categories) write them."""
    assert api.post("/v1/datasets", json=BODY).status_code == 201
    push = "/v1/datasets/photos/records"
    assert api.put(push, content=_rows()).json()["added"] == 2
    changed = {
        "id": layouts.TEXTS[layout](["a", "b"]),
        "person": layouts.TEXTS[layout](["x", None]),
        "age": layouts.decimals([20, None], pa.decimal128(18, 3)),
        "photo": pa.array([b"\xff\xd8", b""]).cast(pa.binary_view()),
        "vector": pa.array([[0.5, 1.0], [2.0, 3.0]], pa.list_view(pa.float64())),
    }
    again = api.put(push, content=_rows(**changed)).json()
    assert (again["already_present"], again["changed"], again["added"]) == (2, 0, 0)


@pytest.mark.parametrize(
    "said",
    [b"{", b"[1]", b"\xff\xfe", b"[" * 200_000, b'{"index_columns": 5}', b'{"index_columns": {}}'],
    ids=["cut off", "a list", "bytes", "deep", "a number", "an object"],
)
def test_what_other_tools_say_of_a_file_is_not_read(api: TestClient, said: bytes) -> None:
    assert api.post("/v1/datasets", json=BODY).status_code == 201
    table = pq.read_table(pa.BufferReader(_rows()))
    field = table.schema.field("age").with_metadata({b"\xfe": b"\xff", b"PARQUET:field_id": b"x"})
    schema = table.schema.set(2, field).with_metadata({"pandas": said, b"\xff": b"\xfe"})
    pushed = api.put("/v1/datasets/photos/records", content=to_parquet(table.cast(schema)))
    assert (pushed.status_code, pushed.json().get("added")) == (200, 2)


def test_an_encrypted_file_is_refused_as_such(api: TestClient) -> None:
    assert api.post("/v1/datasets", json=BODY).status_code == 201
    rows = pq.read_table(pa.BufferReader(_rows()))
    content = layouts.encrypted(rows, ["photo", "person"], footer=False)
    _refused(api.put("/v1/datasets/photos/records", content=content), 422, "is encrypted")

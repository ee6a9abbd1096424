"""Damaged files and bodies are refused: never an error of ours, never a hang.

Time is the process's own, so that what else the machine does counts for nothing.
"""

import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import safetensors.torch
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.domain.errors import InvalidInputError, InvalidRecordsError, PayloadTooLargeError
from app.ledger.models.definitions import check_weights
from tests.support.arrays import array_schema
from tests.support.mutations import mutated
from tests.support.uploads import parse_upload
from tests.support.workshop import DATASET, TASK, Workshop, records_parquet

LONGEST_S = 5.0
SCHEMA = array_schema(2)
WEIGHTS = safetensors.numpy.save(
    {"weight": np.ones((2, 2), np.float32), "steps": np.zeros((), np.int64)}, {"made": "here"}
)
BODIES = [
    json.dumps(body).encode()
    for body in (
        {"dataset": DATASET, "record_ids": ["record-1"], "external_id": "é\U0001f600"},
        {"name": "d", "columns": {"x": "list<int8, 2>?"}, "record_id": "id"},
        {"name": "m", "dataset": DATASET, "task": TASK,
         "architecture": {"name": "mlp", "options": {"a": [1]}},
         "policy": {"epsilon": 1.5, "parameters": {"noise_std": [3.0, 2.0]}}},
        {"name": "k", "scopes": ["log:read"]},
        {"model": "head", "policy": {"budget_epochs": 1.0}},
    )
]  # fmt: skip
POSTS = ["datasets", "models", "forget-requests", "api-keys", "plans", "backbones"]
FACTOR = int(os.environ.get("FUZZ_FACTOR", "1"))
MANY = settings(max_examples=60 * FACTOR, deadline=None, suppress_health_check=list(HealthCheck))
SOME = settings(max_examples=15 * FACTOR, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def head(workshop: Workshop) -> str:
    return workshop.define("head", architecture="linear_head", recipe={"epochs": 1000})


def _parquets() -> list[bytes]:
    """The same records as several writers lay them out."""
    plain = records_parquet(40, first=1000)
    table = pq.read_table(io.BytesIO(plain))
    files = [plain]
    for compression in ("none", "gzip", "zstd", "lz4"):
        for options in ({"use_dictionary": False}, {"data_page_version": "2.0"}):
            buffer = io.BytesIO()
            pq.write_table(table, buffer, compression=compression, row_group_size=16, **options)
            files.append(buffer.getvalue())
    return files


PARQUETS = _parquets()


@contextmanager
def _in_time() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < LONGEST_S


def test_the_originals_are_accepted() -> None:
    for content in PARQUETS:
        assert len(parse_upload(content, SCHEMA).record_ids) == 40
    check_weights(WEIGHTS)


@given(mutated(PARQUETS))
@example(PARQUETS[0].replace(b"subject_id", b"subject\xffid"))
@MANY
def test_a_damaged_parquet_file_is_refused_or_read(content: bytes) -> None:
    with _in_time(), suppress(InvalidRecordsError):
        assert parse_upload(content, SCHEMA).record_ids


def test_a_column_whose_name_is_no_text() -> None:
    content = PARQUETS[1].replace(b"label", b"lab\xffl")
    with pytest.raises(InvalidRecordsError):
        parse_upload(content, SCHEMA)


@given(mutated([WEIGHTS]))
@MANY
def test_weights_that_pass_can_be_read_by_a_worker(content: bytes) -> None:
    with _in_time():
        try:
            check_weights(content)
        except InvalidInputError:
            return
        safetensors.torch.load(content)


def test_weights_with_a_header_of_many_megabytes_are_refused_with_both_numbers() -> None:
    head = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(5 << 20)
    with pytest.raises(
        PayloadTooLargeError, match=f"{5 << 20} bytes; at most {4 << 20} are allowed"
    ):
        check_weights(len(head).to_bytes(8, "little") + head + bytes(4))


@pytest.mark.parametrize("dtype", ["F4", "F8_E4M3", "C64"])
def test_a_type_of_number_that_no_model_has_is_refused(dtype: str) -> None:
    head = json.dumps({"w": {"dtype": dtype, "shape": [16], "data_offsets": [0, 8]}})
    size = {"F4": 8, "F8_E4M3": 16, "C64": 128}[dtype]
    head = head.replace("8]", f"{size}]").encode()
    with pytest.raises(InvalidInputError, match=f"type {dtype}"):
        check_weights(len(head).to_bytes(8, "little") + head + bytes(size))


@SOME
@given(content=mutated(PARQUETS))
def test_pushed_files(api: TestClient, workshop: Workshop, content: bytes) -> None:
    with _in_time():
        answer = api.put(f"/v1/datasets/{DATASET}/records", content=content)
    assert answer.status_code in (200, 422), answer.text


@SOME
@given(content=mutated([WEIGHTS]))
def test_pushed_weights(api: TestClient, workshop: Workshop, content: bytes) -> None:
    if api.get("/v1/models/model").status_code != 200:
        workshop.define(upload=True)
    with _in_time():
        answer = api.put("/v1/models/model/weights", content=content)
    assert answer.status_code in (202, 409, 422), answer.text


@settings(SOME, max_examples=50 * FACTOR)
@given(path=st.sampled_from(POSTS), content=mutated(BODIES) | st.binary(max_size=60))
def test_posted_bodies(api: TestClient, workshop: Workshop, path: str, content: bytes) -> None:
    with _in_time():
        answer = api.post(
            f"/v1/{path}", content=content, headers={"Content-Type": "application/json"}
        )
    assert answer.status_code < 500, answer.text
    if answer.is_error:
        assert answer.headers["content-type"] == "application/problem+json"


_numbers = st.floats() | st.integers(-(2**70), 2**70) | st.sampled_from([0, 1, 1e308, -1e-308])
_values = (
    _numbers | st.text(max_size=5) | st.booleans() | st.none() | st.lists(_numbers, max_size=3)
)


@settings(SOME, max_examples=50 * FACTOR)
@given(
    policy=st.dictionaries(
        st.sampled_from(
            ["epsilon", "delta", "mechanism", "parameters", "window_s", "deadline_s",
             "budget_epochs", "adaptive"]
        ),
        _values | st.dictionaries(st.sampled_from(["noise_std", "steps", "sigma"]), _values),
    ),
)  # fmt: skip
def test_quotes_for_strange_numbers(api: TestClient, head: str, policy: dict) -> None:
    body = json.dumps({"policy": policy, "model": head})
    with _in_time():
        answer = api.post("/v1/plans", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 422), answer.text


_extremes = st.sampled_from([5e-324, 1e-300, 1e-12, 0.5, 1.0, 1e9, 1e300])


@settings(SOME)
@given(policy=st.fixed_dictionaries({"epsilon": _extremes, "budget_epochs": _extremes}))
@example(policy={"epsilon": 5e-324})
@example(policy={"budget_epochs": 1e300})
def test_quotes_for_extreme_numbers(api: TestClient, head: str, policy: dict) -> None:
    answer = api.post("/v1/plans", json={"policy": policy, "model": head})
    assert answer.status_code in (200, 422), answer.text

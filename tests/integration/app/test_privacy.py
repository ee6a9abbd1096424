"""No owner's id is kept anywhere, and no record outlives its request."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.domain.errors import GoneError
from app.registry.datasets.shards import unpacked
from app.runtime.locations import redis_connection
from app.services import Services
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.dumps import everything_in_postgres, everything_in_redis

RECORDS = 120


def test_no_owners_id_reaches_postgres_redis_disk_or_a_log(
    api: TestClient,
    services: Services,
    work: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    redis = redis_connection(services.settings)
    seen: list[str] = []

    def look() -> None:
        seen.append(everything_in_postgres(services.database.engine))
        seen.append(everything_in_redis(redis).decode("latin-1"))
        files = [f for f in Path(services.settings.data_dir).rglob("*") if f.is_file()]
        seen.extend(file.read_bytes().decode("latin-1") for file in files)

    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    api.put("/v1/datasets/digits/records", content=digits_parquet(RECORDS))
    api.post("/v1/models", json=model())
    look()
    work()
    body = {"dataset": "digits", "record_ids": ["record-7"], "subject_ids": ["subject-3"]}
    answer = api.post("/v1/forget-requests", json=body)
    assert answer.status_code == 202
    api.post("/v1/forget-requests", json={**body, "record_ids": ["record-nobody"]})
    look()
    work()
    look()

    assert api.get(answer.headers["location"]).json()["state"] == "completed"
    printed = capfd.readouterr()
    # The client writes URLs to the log; the service itself is what counts here.
    lines = [r.getMessage() for r in caplog.records if not r.name.startswith("httpx")]
    seen += [printed.out, printed.err, "\n".join(lines)]
    assert len("".join(seen)) > 10_000
    ids = [f"record-{i}" for i in (7, 33, 119)] + [f"subject-{i}" for i in (3, 11)]
    in_bytes = [i.encode().hex() for i in ids]  # as Postgres spells them
    for needle in (*ids, *in_bytes, "record-", "subject-", b"record-".hex()):
        assert not [text for text in seen if needle in text], needle
    assert "record-nobody" not in "".join(seen)


def test_a_completed_request_leaves_no_byte_of_its_records(
    api: TestClient, services: Services
) -> None:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(RECORDS))
    blobs = services.settings.data_dir / "blobs"
    (before,) = blobs.iterdir()
    import pyarrow.parquet as pq
    from pyarrow import BufferReader

    table = pq.read_table(BufferReader(digits_parquet(RECORDS)))
    images = table["features"].chunk(0).storage.flatten().to_numpy().reshape(RECORDS, 64)
    assert images[7].tobytes() in b"".join(unpacked(services.blobs.read(before.name)))
    assert images[7].tobytes() not in before.read_bytes()

    api.post("/v1/forget-requests", json={"dataset": "digits", "record_ids": ["record-7"]})
    services.clean_up()

    (after,) = blobs.iterdir()
    kept = b"".join(unpacked(services.blobs.read(after.name)))
    assert images[7].tobytes() not in kept
    assert images[8].tobytes() in kept
    assert images[8].tobytes() not in after.read_bytes()
    with pytest.raises(GoneError):
        services.blobs.read(before.name)

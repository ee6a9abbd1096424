"""Imports from a real S3 server."""

import io

import pyarrow.parquet as pq
import pytest

from tests.integration.workers.data.imports.conftest import counts, members
from tests.support.s3 import ACCESS, S3Server

pytestmark = pytest.mark.usefixtures("dataset")


@pytest.fixture(scope="module")
def server():
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def prefixes(server, monkeypatch):
    monkeypatch.setenv("EXPUNGE_IMPORT_S3_ENDPOINT", server.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", ACCESS["region"])
    monkeypatch.setenv("EXPUNGE_IMPORT_S3_ACCESS_KEY", ACCESS["access_key"])
    monkeypatch.setenv("EXPUNGE_IMPORT_S3_SECRET_KEY", ACCESS["secret_key"])
    return [f"s3://{server.bucket}/exports"]


@pytest.fixture
def put(server):
    client = server.client()

    def put(key, table, **options):
        content = io.BytesIO()
        pq.write_table(table, content, **options)
        client.put_object(Bucket=server.bucket, Key=key, Body=content.getvalue())

    yield put
    for key in server.names():
        client.delete_object(Bucket=server.bucket, Key=key)


def test_an_object_a_folder_and_a_pattern(server, put, ended):
    base = f"s3://{server.bucket}/exports"
    put("exports/2026/a b.parquet", members(0, 500), row_group_size=100)
    put("exports/2026/ü.parquet", members(500, 100))
    put("exports/2027/a.parquet", members(600, 100))
    put("exports/2027/_hidden.parquet", members(900, 100))
    put("exports-secret/a.parquet", members(800, 100))
    assert counts(ended(f"{base}/2026/a%20b.parquet")) == (500, 0, 0)
    assert counts(ended(f"{base}/2026/ü.parquet")) == (100, 0, 0)
    assert counts(ended(f"{base}/202?/a*.parquet")) == (100, 500, 0)
    assert counts(ended(base)) == (0, 700, 0)


def test_a_pattern_that_fits_nothing_ends_at_once(server, put, ended):
    put(f"exports/{'a' * 200}.parquet", members(0, 10))
    found = ended(f"s3://{server.bucket}/exports/*a*a*a*a*a*a*a*az")
    assert found["failure_reason"] == "there are no Parquet files at this place"


def test_other_folders_and_buckets_are_refused(api, server):
    other = f"s3://{server.bucket}/exports-secret/a.parquet"
    for url in (other, "s3://another-bucket/exports/a.parquet", f"s3://{server.bucket}/"):
        answer = api.post("/v1/datasets/members/imports", json={"url": url})
        assert (answer.status_code, answer.json()["type"]) == (
            422,
            "urn:expunge:problem:place-not-allowed",
        )


def test_a_missing_object_is_said(server, ended):
    found = ended(f"s3://{server.bucket}/exports/missing.parquet")
    assert (found["state"], found["added"]) == ("failed", 0)


def test_a_bucket_that_is_away_for_a_while_is_waited_for(api, server, put, ask, work, monkeypatch):
    put("exports/a.parquet", members(0, 50))
    monkeypatch.setattr("workers.data.imports.sources._ATTEMPTS", 1)
    monkeypatch.setattr("app.registry.datasets.imports.service.RETRY_DELAY_S", 0.0)
    asked = ask(f"s3://{server.bucket}/exports/a.parquet")
    path = f"/v1/datasets/members/imports/{asked['id']}"
    from workers import jobs

    server.stop()
    jobs.carry_out_import(asked["id"])
    found = api.get(path).json()
    assert (found["state"], found["added"]) == ("queued", 0)
    server.start()
    work()
    found = api.get(path).json()
    # moto holds its objects in memory, so they outlive its port.
    assert (found["state"], found["added"]) == ("completed", 50)

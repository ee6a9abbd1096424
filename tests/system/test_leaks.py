"""The main job on records, ids and weights that can be recognised, then a search of every store.

The service is the real one, in processes of its own. What is searched for are random bytes that
this test made up, in every spelling: raw, hexadecimal, base64, UTF-16, float32, float64 and text.
"""

import io
import secrets

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from sqlalchemy import text

from tests.support.collector import Collector
from tests.support.digits import DATASET, model
from tests.support.markers import Marker
from tests.support.patience import PATIENCE_S, until
from tests.support.people import People
from tests.support.service import running
from tests.support.traces import Traces

FORGOTTEN_SUBJECT = 3
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def collector():
    with Collector() as collector:
        yield collector


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("1", id="one process"),
        pytest.param("3", id="three processes", marks=pytest.mark.nightly),
    ],
)
def service(request, tmp_path_factory, collector):
    directory = tmp_path_factory.mktemp("leaks")
    with running(
        directory / "data", EXPUNGE_DEVICES=request.param, **collector.environment
    ) as service:
        yield service


@pytest.fixture(scope="module")
def people():
    return People.invent(200)


@pytest.fixture(scope="module")
def job(service, people):
    """The main job, done: all that must be gone, and what is kept."""
    traces = Traces(service, people)
    with service.client() as client:
        client.define_dataset(**DATASET)
        client.push_records("digits", people.parquet())
        client.define_model(model("trained"))
        client.define_model({**model("uploaded"), "weights": "upload"})
        client.define_model(model("anew", mechanism="retraining"))
        imported = _weights_like(client, "trained")
        client.upload_weights("uploaded", imported)
        traces.superseded("imported weights", imported)
        traces.forgotten(people, FORGOTTEN_SUBJECT)
        for name in ("trained", "uploaded", "anew"):
            assert (
                client.wait_for_model(name, timeout_s=PATIENCE_S)["latest_run"]["state"]
                == "published"
            )
            traces.published(name, _download(client, name))
        request = client.forget(
            "digits",
            subject_ids=[people.subject(FORGOTTEN_SUBJECT)],
            external_id=f"ticket of {people.token}@example.com",
            idempotency_key=f"{people.token}@example.com",
        )
        _fail_on_purpose(client, people)
        done = client.wait_for_request(request["id"], timeout_s=PATIENCE_S)
        assert done["state"] == "completed"
        for name in ("trained", "uploaded", "anew"):
            traces.published(name, _download(client, name))
    until(lambda: _superseded_is_shredded(service))
    return traces


def _weights_like(client, name):
    assert client.wait_for_model(name, timeout_s=PATIENCE_S)["latest_run"]["state"] == "published"
    generator = np.random.default_rng(int.from_bytes(secrets.token_bytes(8)))
    like = safetensors.numpy.load(_download(client, name))
    return safetensors.numpy.save(
        {
            key: generator.normal(0, 0.1, tensor.shape).astype(np.float32)
            for key, tensor in like.items()
        }
    )


def _download(client, name):
    answer = client.http.get(f"/v1/models/{name}/certified/weights", follow_redirects=True)
    assert answer.status_code == 200
    return answer.content


def _fail_on_purpose(client, people):
    """Requests that fail are told of in logs; they name what they are about."""
    http, marked = client.http, f"nobody-{people.token}"
    assert http.post("/v1/forget-requests", json={"dataset": "digits", "record_ids": [marked]})
    broken = http.post("/v1/forget-requests", content=f"{{{marked}", headers=JSON)
    assert broken.status_code == 422
    assert http.get(f"/v1/forget-requests/{marked}").status_code == 404
    assert http.get(f"/v1/datasets/{marked}?subject={marked}").status_code == 404
    assert http.put("/v1/datasets/digits/records", content=people.parquet()[:-9]).status_code == 422
    kept = io.BytesIO()
    is_kept = pc.field("subject_id") != people.subject(FORGOTTEN_SUBJECT)
    pq.write_table(pq.read_table(io.BytesIO(people.parquet()), filters=is_kept), kept)
    assert http.put("/v1/datasets/digits/records", content=kept.getvalue()).status_code == 200


def _superseded_is_shredded(service):
    with service.database() as database, database.transaction() as session:
        left = session.scalar(text("SELECT count(*) FROM blobs WHERE state = 'doomed'"))
        kept = session.scalar(text("SELECT count(*) FROM blobs WHERE state = 'live'"))
    return left == 0 and kept == 4  # three heads and a shard


@pytest.fixture(scope="module")
def stopped(service, job, collector):
    """What there is once the servers have told all that they hold, and every process has ended.

    Objects as somebody reads them who has all keys, and bytes that the database is known to hold.
    """
    job.places.dump()
    opened = job.opened()
    with service.database() as database, database.transaction() as session:
        record_key = session.scalar(text("SELECT record_key FROM records LIMIT 1"))
    assert service.stop() == 0
    # What left this machine is searched like all that stays.
    (service.temporary / "spans").write_bytes(b"\0".join(collector.bodies()))
    return opened, Marker("a pseudonym", bytes(record_key))


def test_nothing_that_is_gone_is_left_anywhere(job, stopped):
    assert len(job.gone) > 15
    assert job.places.search(job.gone) == []


def test_what_is_kept_is_in_encrypted_objects_alone(job, stopped):
    opened, _ = stopped
    assert job.places.search(job.kept()) == []
    job.assert_nothing_in_objects(opened)


def test_the_search_reads_the_database_the_dump_and_the_log(job, stopped):
    _, pseudonym = stopped
    read = [str(path) for path in job.places.files()]
    for part in ("/postgres/base/", "/postgres/pg_wal/", "data.log", "/spans"):
        assert any(part in path for path in read), part
    found = [finding.place for finding in job.places.search([pseudonym])]
    assert any("/postgres/base/" in place for place in found)
    assert any("/postgres/pg_wal/" in place for place in found)
    assert "the rows of Postgres" in found


def test_the_search_reads_the_traces(job, stopped):
    found = [finding.place for finding in job.places.search([Marker("a span", b"unlearning")])]
    assert any(place.endswith("/spans") for place in found)


def test_the_search_reads_redis_and_command_lines(job, stopped):
    found = [finding.place for finding in job.places.search([Marker("a queue", b"rq:workers")])]
    assert "the values of Redis" in found
    found = [finding.place for finding in job.places.search([Marker("a part", b"app.cli serve")])]
    assert "command lines" in found

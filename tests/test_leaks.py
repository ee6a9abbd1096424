"""The main job on records, ids and weights that can be recognised, then a search of every store.

The service is the real one, in processes of its own. What is searched for are random bytes that
this test made up, in every spelling: raw, hexadecimal, base64, UTF-16, float32, float64 and text.
"""

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from redis import Redis
from sqlalchemy import text

from app.datasets.files import record_table, to_parquet
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.dumps import everything_in_redis
from tests.support.markers import (
    Marker,
    files_below,
    files_changed_since,
    marker_of_weights,
    search_files,
)
from tests.support.service import Service, until

RECORDS = 200
PER_SUBJECT = 10
FORGOTTEN_SUBJECT = 3
SHARED = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))

# The one thing that depends on how objects are stored: while they are not encrypted, the shards
# hold the features of retained records, and the head's blob its weights, for whoever reads them.
OBJECTS_ARE_ENCRYPTED = True


@dataclass(frozen=True)
class People:
    """Made-up people. Features are small numbers, as those of the digits are."""

    token: str
    forgotten: bytes
    retained: bytes

    @classmethod
    def invent(cls):
        return cls(secrets.token_hex(8), *(_small_bytes() for _ in range(2)))

    def subject(self, number):
        return f"subject-{self.token}-{number}"

    def parquet(self):
        numbers = np.arange(RECORDS)
        import pyarrow.parquet as pq
        from pyarrow import BufferReader

        digits = pq.read_table(BufferReader(digits_parquet(RECORDS)))
        images = (
            digits["features"].chunk(0).storage.flatten().to_numpy().reshape(RECORDS, 64).copy()
        )
        for i in numbers:
            mine = self.forgotten if i // PER_SUBJECT == FORGOTTEN_SUBJECT else self.retained
            images[i, :24] = np.frombuffer(mine, dtype=np.uint8)
        return to_parquet(
            record_table(
                record_ids=[f"record-{self.token}-{i}" for i in numbers],
                subject_ids=[self.subject(i // PER_SUBJECT) for i in numbers],
                labels=digits["label"].to_numpy(),
                features=images.reshape(-1, 8, 8),
            )
        )

    def never_stored(self):
        """Markers that no store may hold, then those that only encrypted ones may."""
        floats = np.frombuffer(self.forgotten, dtype=np.uint8).astype(np.float32)
        return [
            Marker("an id", self.token.encode()),
            Marker("forgotten features", self.forgotten),
            Marker("forgotten features, float32", floats.tobytes()),
            Marker("forgotten features, scaled", (floats * np.float32(0.0625)).tobytes()),
        ]

    def retained_features(self):
        return Marker("retained features", self.retained)


def _small_bytes():
    return bytes(secrets.randbelow(17) for _ in range(24))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    directory = tmp_path_factory.mktemp("leaks")
    (directory / "tmp").mkdir()
    service = Service(directory / "data", TMPDIR=str(directory / "tmp"))
    try:
        service.start()
        yield service
    finally:
        service.discard()


@pytest.fixture(scope="module")
def job(service):
    """The main job, done: who was in it, and all weights that must be gone."""
    began = time.time()
    people = People.invent()
    with service.client() as client:
        client.define_dataset("digits", features=DATASET["features"], classes=10)
        client.push_records("digits", people.parquet())
        client.define_model(model("trained"))
        client.define_model({**model("uploaded"), "weights": "upload"})
        imported = _weights_like(client, "trained")
        client.upload_weights("uploaded", safetensors.numpy.save(imported))
        gone = marker_of_weights("imported", _largest(imported))
        for name in ("trained", "uploaded"):
            assert client.wait_for_model(name, timeout_s=90)["latest_run"]["state"] == "published"
            first = safetensors.numpy.load(_download(client, name))
            gone += marker_of_weights(f"superseded {name}", _largest(first))
        request = client.forget(
            "digits",
            subject_ids=[people.subject(FORGOTTEN_SUBJECT)],
            external_id=f"ticket of {people.token}@example.com",
            idempotency_key=f"{people.token}@example.com",
        )
        _fail_on_purpose(client, people)
        done = client.wait_for_request(request["id"], timeout_s=90)
        assert done["state"] == "completed"
        current = _largest(safetensors.numpy.load(_download(client, "trained")))
    until(lambda: _superseded_is_shredded(service))
    return began, people, gone, marker_of_weights("current", current)


def _weights_like(client, name):
    assert client.wait_for_model(name, timeout_s=90)["latest_run"]["state"] == "published"
    generator = np.random.default_rng(int.from_bytes(secrets.token_bytes(8)))
    like = safetensors.numpy.load(_download(client, name))
    return {
        key: generator.normal(0, 0.1, tensor.shape).astype(np.float32)
        for key, tensor in like.items()
    }


def _download(client, name):
    answer = client._http.get(f"/v1/models/{name}/certified/weights", follow_redirects=True)
    assert answer.status_code == 200
    return answer.content


def _largest(tensors):
    return max(tensors.values(), key=lambda tensor: tensor.size)


def _fail_on_purpose(client, people):
    """Requests that fail are told of in logs; they name what they are about."""
    http, marked = client._http, f"nobody-{people.token}"
    assert http.post("/v1/forget-requests", json={"dataset": "digits", "record_ids": [marked]})
    assert http.post("/v1/forget-requests", content=f"{{{marked}").status_code == 422
    assert http.get(f"/v1/forget-requests/{marked}").status_code == 404
    assert http.get(f"/v1/datasets/{marked}?subject={marked}").status_code == 404
    assert http.put("/v1/datasets/digits/records", content=people.parquet()[:-9]).status_code == 422
    assert http.put("/v1/datasets/digits/records", content=people.parquet()).status_code in (
        200,
        422,
    )


def _superseded_is_shredded(service):
    with service.database() as database, database.transaction() as session:
        left = session.scalar(text("SELECT count(*) FROM blobs WHERE state = 'doomed'"))
        kept = session.scalar(text("SELECT count(*) FROM blobs WHERE state = 'live'"))
    return left == 0 and kept == 3  # two heads and a shard


@pytest.fixture(scope="module")
def stores(service, job):
    """All files that there are once Redis has saved, Postgres has stopped and processes ended."""
    redis = Redis.from_url(service.servers.redis_url)
    redis.config_set("rdbcompression", "no")
    redis.save()
    unpacked = service.data_dir.parent / "redis.unpacked"
    unpacked.write_bytes(everything_in_redis(redis))  # RQ compresses what it keeps
    dump = Path(redis.config_get("dir")["dir"]) / "dump.rdb"
    saved = service.data_dir.parent / "redis.rdb"
    saved.write_bytes(dump.read_bytes())
    with service.database() as database:
        places = Places(service, [saved, unpacked], began=job[0])
        before = Leftovers(database.engine)
    assert service.stop() == 0
    return places, before


class Leftovers:
    """What the job left in Postgres, to see that the search below reads the same."""

    def __init__(self, engine):
        with engine.connect() as connection:
            self.record_key = connection.scalar(text("SELECT record_key FROM records LIMIT 1"))


class Places:
    """Everywhere that the service, its servers and its libraries could have written."""

    def __init__(self, service, saved, *, began):
        self.blobs = service.data_dir / "blobs"
        self._service, self._saved, self._began = service, saved, began

    def files(self):
        service = self._service
        ours = service.data_dir.parent
        yield from files_below(service.data_dir, ours / "tmp")
        yield from (service.log, *self._saved)
        for root in SHARED:
            changed = files_changed_since(self._began, root, depth=2)
            yield from (path for path in changed if ours not in path.parents)

    def search(self, markers):
        return search_files(self.files(), markers)


def test_no_id_and_nothing_forgotten_is_left_anywhere(job, stores):
    _, people, _, _ = job
    places, _ = stores
    assert places.search(people.never_stored()) == []


def test_no_superseded_or_imported_weight_is_left_anywhere(job, stores):
    _, _, gone, _ = job
    places, _ = stores
    assert len(gone) > 10
    assert places.search(gone) == []


def test_what_is_kept_is_in_encrypted_objects_alone(job, stores):
    _, people, _, current = job
    places, _ = stores
    findings = places.search([people.retained_features(), *current])
    if OBJECTS_ARE_ENCRYPTED:
        assert findings == []
    else:
        assert findings != []
        assert {Path(finding.place).parent for finding in findings} == {places.blobs}


def test_the_search_reads_the_database_the_dump_and_the_log(stores):
    places, before = stores
    read = [str(path) for path in places.files()]
    for part in ("/postgres/base/", "/postgres/pg_wal/", "redis.rdb", "data.log", "/log/redis.log"):
        assert any(part in path for path in read), part
    found = places.search([Marker("a pseudonym", bytes(before.record_key))])
    assert any("/postgres/base/" in finding.place for finding in found)
    assert any("/postgres/pg_wal/" in finding.place for finding in found)

"""The last INSERT of a publication fails after everything was signed: nobody may ever notice."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, make_url, text

from app.evidence.certificates.verification import verify
from app.operations import fsck
from app.runtime.embedded import EmbeddedServers
from app.services import Services
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.trust import trust_in

# A sequence keeps its count when the transaction that drew from it is rolled back.
FAILS_ONCE = """
    CREATE SEQUENCE attempts;
    GRANT USAGE ON SEQUENCE attempts TO PUBLIC;
    CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('attempts') = 1 THEN RAISE EXCEPTION 'disk full'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail_once BEFORE INSERT ON log_checkpoints
    FOR EACH ROW EXECUTE FUNCTION fail_once();
"""


@pytest.fixture
def failing_once(servers: EmbeddedServers, database_url: str) -> Callable[[], None]:
    """Let the INSERT that ends the next publication fail, and only that one."""

    def install() -> None:
        own = make_url(database_url).database
        owner = create_engine(servers.migration_url.replace("/expunge?", f"/{own}?"))
        with owner.begin() as connection:
            connection.execute(text(FAILS_ONCE))
        owner.dispose()

    return install


def test_the_run_is_tried_again_and_the_log_shows_one_publication(
    api: TestClient,
    services: Services,
    work: Callable[[], None],
    failing_once: Callable[[], None],
    tmp_path: Path,
) -> None:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(100))
    api.post("/v1/models", json=model())
    work()
    answer = api.post(
        "/v1/forget-requests", json={"dataset": "digits", "subject_ids": ["subject-3"]}
    )
    failing_once()

    work()

    run = api.get("/v1/models/digits-mlp").json()["latest_run"]
    assert (run["state"], run["attempt"]) == ("published", 2)
    assert api.get(answer.headers["Location"]).json()["state"] == "completed"
    versions = api.get("/v1/models/digits-mlp/versions").json()["items"]
    assert [(v["number"], v["state"]) for v in versions] == [(2, "certified"), (1, "shredded")]
    entries = api.get("/v1/log/entries", params={"limit": 1000}).json()["entries"]
    assert [entry["index"] for entry in entries] == list(range(len(entries)))
    told = Counter(json.loads(entry["body"])["kind"] for entry in entries)
    assert told["version.published"] == told["certificate.issued"] == 2
    assert told["run.requeued"] == 1
    faults: list[fsck.Fault] = []
    fsck.check(services.database, keys=[services.signer.public_key], report=faults.append, kept=[])
    assert faults == []
    weights = tmp_path / "weights"
    weights.write_bytes(api.get("/v1/models/digits-mlp/certified/weights").content)
    bundle = api.get("/v1/models/digits-mlp/versions/2/certificate").content
    assert verify(bundle=bundle, weights=weights, trusted=trust_in(services))

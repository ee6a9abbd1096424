"""An import whose decoding process is killed is tried again; a file that is too large is not."""

import os

import pyarrow as pa
import pytest

from app.runtime.processes.stopping import StopSignal
from tests.integration.workers.data.imports.conftest import counts, members, url_of, write
from tests.support.decoders import decoder_of, killed
from workers.data.imports.importing import Batches, attempt

pytestmark = pytest.mark.usefixtures("dataset")
ROWS = 20_000


@pytest.fixture
def attempted(services, api, folder, ask, monkeypatch):
    """Make one attempt at an import whose decoder is killed at a point; return what it came to."""
    monkeypatch.setattr("app.registry.datasets.imports.service.RETRY_DELAY_S", 0.0)
    monkeypatch.setattr(
        "workers.data.imports.importing.Batches", lambda *args: Batches(*args, batch_rows=4_000)
    )
    write(folder / "a.parquet", members(0, ROWS), row_group_size=2_000)
    import_id = ask(url_of(folder))["id"]

    def attempted(point):
        left = [point]

        def kill(reached):
            if reached in left:  # once: what it had answered before may make another batch
                left.clear()
                killed(decoder_of(os.getpid()))

        monkeypatch.setattr("workers.data.imports.importing.reach", kill)
        attempt(services, import_id, StopSignal())
        return api.get(f"/v1/datasets/members/imports/{import_id}").json()

    return attempted


def test_killed_twice_and_then_completed(api, attempted):
    found = attempted("import_listed")
    assert (found["state"], found["added"], found["failure_reason"]) == ("queued", 0, None)
    found = attempted("import_batch_added")
    assert (found["state"], found["failure_reason"]) == ("queued", None)
    assert 0 < found["added"] < ROWS
    found = attempted(None)
    assert (found["state"], counts(found)) == ("completed", (ROWS, 0, 0))
    assert api.get("/v1/datasets/members").json()["records"] == ROWS


def test_killed_in_every_attempt_it_fails_with_the_reason(attempted, services):
    states = [attempted("import_listed") for _ in range(services.settings.max_attempts)]
    assert [found["state"] for found in states] == ["queued", "queued", "failed"]
    assert "a.parquet: decoding it broke off" in states[-1]["failure_reason"]


def test_too_much_memory_is_refused_in_the_first_attempt(services, api, ask, folder):
    large = pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), ["x" * 1_000_000])
    write(folder / "a.parquet", members(0, ROWS).set_column(3, "name", large))
    import_id = ask(url_of(folder))["id"]
    attempt(services, import_id, StopSignal())
    found = api.get(f"/v1/datasets/members/imports/{import_id}").json()
    assert (found["state"], found["added"]) == ("failed", 0)
    assert "memory" in found["failure_reason"]

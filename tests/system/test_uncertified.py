"""Weights under their target, noise and keys: known to the test alone, and searched for everywhere.

A run tells them from its own memory. It is killed, fails or goes on to its end; afterwards no store
and no file may hold anything of it.
"""

import numpy as np
import pytest
from sqlalchemy import select

from app.ledger.tables import RunRow
from app.locations import redis_connection
from tests.support.digits import DATASET, RECIPE, digits_parquet, model
from tests.support.markers import Marker, marker_of_weights, search_bytes
from tests.support.opened import opened_objects
from tests.support.places import Places
from tests.support.watched import told_by, watch
from workers import jobs
from workers.dispatcher import Dispatcher
from workers.queue import open_queue

STEPS = 12


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.fixture
def places(servers, settings, temporary, tmp_path):
    return Places(
        servers,
        *(servers._home.data_dir, settings.data_dir, temporary),
        ours=tmp_path,
        database_url=settings.database_url,
    )


@pytest.fixture
def run_id(places, api, services):
    """A first training that is not yet carried out, with noisy steps after it."""
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())
    definition = {
        **model(parameters={"steps": STEPS}, budget_epochs=2 * STEPS),
        "recipe": {**RECIPE, "batch_size": 1000},
    }
    assert api.post("/v1/models", json=definition).status_code == 201
    Dispatcher(services, open_queue(redis_connection(services.settings))).tick()
    with services.database.transaction() as session:
        return session.scalars(select(RunRow.id)).one()


def before_the_target(told):
    """Return what was told before the noisy phase's last step, if it came to that."""
    steps = [number for number, (what, _) in enumerate(told) if what == "noisy phase"]
    return told[: steps[STEPS - 1]] if len(steps) >= STEPS else told


def markers(told):
    found = []
    for number, (what, content) in enumerate(before_the_target(told)):
        if what == "key":
            found.append(Marker("a key", content))
        else:
            dtype = np.float64 if what == "noise" else np.float32
            found += marker_of_weights(f"{what}, {number}", np.frombuffer(content, dtype))
    return found


def found_in(places, services, told):
    """Return where anything of what was told is: in all places, and in opened objects."""
    wanted = markers(told)
    places.dump()
    keys, directory = services.blobs._keys, services.settings.data_dir / "blobs"
    opened = opened_objects(directory, keys, services.database)
    return {f.place for f in [*places.search(wanted), *search_bytes(opened, wanted)]}


def state_of(services, run_id):
    with services.database.transaction() as session:
        return session.get_one(RunRow, run_id).state


def assert_all_kinds(told):
    assert {"key", "noise", "training", "noisy phase"} <= {what for what, _ in told}


def test_nothing_is_left_of_a_run_that_was_published(places, services, run_id, monkeypatch):
    told = []
    watch(lambda *one: told.append(one), patch=monkeypatch.setattr)
    jobs.execute_run(run_id)
    assert state_of(services, run_id) == "published"
    assert_all_kinds(told)
    assert found_in(places, services, told) == set()


@pytest.mark.slow
def test_nothing_is_left_of_a_run_that_was_killed(places, services, run_id):
    told = told_by(run_id, f"kill={STEPS // 2}")
    assert state_of(services, run_id) == "running"
    assert_all_kinds(told)
    assert sum(what == "noisy phase" for what, _ in told) == STEPS // 2
    assert found_in(places, services, told) == set()


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
def test_a_cache_that_writes_weights_is_refused(guarded, places, services, run_id, temporary):
    cache = temporary / "weights.cache"
    open_disk = [] if guarded else ["open"]
    told = told_by(run_id, f"spill={cache}", f"kill={STEPS // 2}", *open_disk)
    assert_all_kinds(told)
    assert found_in(places, services, told) == (set() if guarded else {str(cache)})
    assert state_of(services, run_id) == ("failed" if guarded else "running")

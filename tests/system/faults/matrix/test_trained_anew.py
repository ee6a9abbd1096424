"""A run that trains anew, for a request or because it was asked to, and one that only solves."""

import pytest

from tests.support.digits import DATASET
from tests.support.facts import await_completed
from tests.support.patience import PATIENCE_S, until
from tests.support.people import People
from tests.system.faults.matrix.cases import DEFINITION

NETWORK, HEAD = "trained-anew", "solved"
DEFINITIONS = {
    NETWORK: {**DEFINITION, "policy": {"mechanism": "retraining"}},
    HEAD: {
        "architecture": {"name": "ridge_head"},
        "recipe": {"held_out_fraction": 0.2},
        "policy": {},
    },
}


@pytest.fixture(scope="module")
def crowd():
    """People of these datasets alone: those of other cases may be forgotten by now."""
    return People.invent(200)


@pytest.fixture(scope="module", autouse=True)
def models(service, crowd, datasets_and_model):
    """Each model has a dataset of its own."""
    with service.client() as client:
        for name, definition in DEFINITIONS.items():
            client.define_dataset(**DATASET | {"name": name})
            client.push_records(name, crowd.parquet())
            client.define_model({**definition, "name": name, "dataset": name})
            client.wait_for_model(name, timeout_s=PATIENCE_S)


@pytest.fixture(scope="module")
def asked():
    """How many were forgotten so far."""
    return {NETWORK: 0, HEAD: 0}


@pytest.fixture
def forget_of(client, crowd, asked):
    def forget(model):
        asked[model] += 1
        return client.forget(model, subject_ids=[crowd.subject(asked[model])])["id"]

    return forget


@pytest.mark.parametrize(
    ("model", "point", "attempts"),
    [
        (NETWORK, "mid_training", 2),
        (NETWORK, "before_blob_write", 2),
        (NETWORK, "before_commit", 2),
        (NETWORK, "after_publish", 1),
        (HEAD, "after_load", 2),
        (HEAD, "before_blob_write", 2),
        (HEAD, "after_blob_write", 2),
        (HEAD, "before_commit", 2),
        (HEAD, "after_publish", 1),
    ],
)
def test_killed_and_what_was_asked_for_is_forgotten(
    model, point, attempts, client, points, forget_of
):
    before = client.certified(model)["number"]
    points.arm(point, "SIGKILL")
    assert await_completed(client, forget_of(model))["attempt"] == attempts
    assert client.certified(model)["number"] == before + 1


@pytest.mark.parametrize(
    ("model", "point", "attempts"),
    [
        (NETWORK, "mid_training", 2),
        (NETWORK, "before_commit", 2),
        (NETWORK, "after_publish", 1),
    ],
)
def test_killed_in_a_training_that_was_asked_for(model, point, attempts, client, points):
    before = client.certified(model)["number"]
    points.arm(point, "SIGKILL")
    client.retrain(model)
    started = client.model(model)["latest_run"]["id"]
    run = until(lambda: (run := client.run(started))["state"] in ("published", "failed") and run)
    assert (run["state"], run["attempt"], run["kind"]) == ("published", attempts, "train")
    assert client.certified(model)["number"] == before + 1

"""A run's process killed at every labelled point: the run is carried out again, or never again."""

import pytest

from tests.support.facts import await_completed
from tests.support.patience import until
from tests.system.faults.matrix.cases import DEFINITION

# The points before the publishing transaction's end, in the order of a run.
BEFORE_THE_COMMIT = (
    "after_lease",
    "before_blob_read",
    "after_load",
    "mid_noise",
    "at_target",
    "mid_fine_tune",
    "before_blob_write",
    "after_blob_write",
    "before_publish",
    "before_commit",
)
AFTER_THE_COMMIT = ("after_publish", "before_shred", "after_shred")


@pytest.mark.parametrize("point", BEFORE_THE_COMMIT)
def test_killed_before_the_commit_and_carried_out_again(point, client, points, forget):
    points.arm(point, "SIGKILL")
    assert await_completed(client, forget())["attempt"] == 2


@pytest.mark.parametrize("point", AFTER_THE_COMMIT)
def test_killed_after_the_commit_and_never_carried_out_again(point, client, points, forget):
    points.arm(point, "SIGKILL")
    assert await_completed(client, forget())["attempt"] == 1


@pytest.mark.parametrize("point", ["before_blob_write", "after_blob_write"])
def test_killed_while_records_are_erased(point, client, points, forget):
    points.arm(point, "pass", "SIGKILL")
    assert await_completed(client, forget())["attempt"] == 1


def test_killed_in_one_attempt_after_the_other(client, points, forget):
    points.arm("mid_noise", "SIGKILL")
    points.arm("before_commit", "SIGKILL")
    assert await_completed(client, forget())["attempt"] == 3


@pytest.mark.parametrize(
    ("point", "first_release"),
    [
        ("mid_training", "certify"),
        ("mid_noise", "certify"),
        ("mid_training", "as_trained"),
        ("before_commit", "as_trained"),
    ],
)
def test_killed_in_its_first_training(point, first_release, client, points):
    name = f"{point}-{first_release}".replace("_", "-")
    policy = {**DEFINITION["policy"], "first_release": first_release}
    points.arm(point, "SIGKILL")
    client.define_model({**DEFINITION, "name": name, "dataset": "others", "policy": policy})
    run = until(
        lambda: (
            (latest := client.model(name)["latest_run"])["state"] in ("published", "failed")
            and client.run(latest["id"])
        )
    )
    assert (run["state"], run["attempt"], run["kind"]) == ("published", 2, "train")
    assert client.certified(name)["number"] == 1

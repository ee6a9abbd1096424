"""An object store that times out is waited for; a full disk costs an attempt."""

import re

import pytest

from tests.support.facts import await_completed, await_ended
from tests.support.patience import until
from tests.support.small_disk import full


@pytest.mark.parametrize("point", ["before_blob_read", "before_blob_write", "after_blob_write"])
def test_a_run_outlasts_an_object_store_that_times_out(point, client, points, forget):
    points.arm(point, *["ETIMEDOUT"] * 4)
    assert await_completed(client, forget())["attempt"] == 1


def test_a_fault_in_every_attempt_fails_the_run_until_it_is_tried_again(
    client, points, forget, failed_runs
):
    points.arm("before_publish", *["ETIMEDOUT"] * 3)
    request = forget()
    failed = await_ended(client, request)
    assert failed["state"] == "failed"
    (obligation,) = failed["obligations"]
    assert "TimeoutError" in obligation["failure_reason"]
    failed_runs.append(obligation["run"])
    client.retry(request)
    assert await_completed(client, request)["attempt"] == 1


def test_the_object_store_times_out_while_records_are_erased(client, points, forget):
    points.arm("before_blob_write", "pass", "ETIMEDOUT", "ETIMEDOUT")
    assert await_completed(client, forget())["attempt"] == 1


def test_the_object_store_times_out_while_it_shreds(client, points, forget):
    points.arm("before_shred", *["ETIMEDOUT"] * 3)
    assert await_completed(client, forget())["attempt"] == 1


@pytest.mark.parametrize(
    ("point", "faults"),
    [
        ("mid_noise", ["SIGSTOP"]),
        ("before_blob_write", ["SIGSTOP"]),
        ("before_blob_write", ["pass", "SIGSTOP"]),
    ],
    ids=["at the next write", "at the write of the weights", "while records are erased"],
)
def test_the_disk_is_full(point, faults, service, client, points, forget):
    if not service.on_small_disk:
        pytest.skip("this machine does not let the test mount a small disk")
    points.arm(point, *faults)
    request = forget()
    (process,) = service.frozen()
    seen = service.log.stat().st_size
    with full(service.data_dir):
        process.resume()
        until(lambda: re.search("OSError|No space left", service.log.read_text()[seen:]))
    await_completed(client, request)

"""Processes that do not come, stand still, or do not do the same: the attempt ends, in minutes."""

import time
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from app.domain.errors import ProcessLostError
from tests.support.patience import PATIENCE_S
from tests.support.processes import launched
from workers.distributed.execution import ANSWERED_WITHIN, CONNECTED_WITHIN, connected

SOON = timedelta(seconds=2)


def test_one_that_never_connects_ends_the_attempt():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
    }
    with pytest.raises(ProcessLostError, match="did not all connect within 2 s"):
        connected(environment, within=SOON)


def test_what_is_waited_for_in_earnest_ends_within_minutes():
    assert timedelta(minutes=30) > CONNECTED_WITHIN + ANSWERED_WITHIN


def disagreeing(team):
    if team.leads:
        return team.norm(1.0)
    return team.heard()


def standing_still(team):
    if not team.leads:
        time.sleep(PATIENCE_S)
    return team.norm(1.0)


@pytest.mark.slow  # it starts processes, which must not agree or come for seconds
@pytest.mark.parametrize("part", [disagreeing, standing_still])
def test_processes_that_do_not_do_the_same_end_the_attempt(tmp_path, part):
    with pytest.raises(ProcessLostError, match="stands still, or does something else"):
        launched(part, devices=2, folder=tmp_path, answered_within=SOON)


def slow(team):
    if team.leads:
        time.sleep(2 * SOON.total_seconds())
        team.announce("go")
        return team.norm(1.0)
    return team.heard()["do"], team.norm(1.0)


@pytest.mark.slow  # it starts processes, one of which sleeps
def test_a_leading_process_may_take_longer_before_it_says_what_is_next(tmp_path):
    results = launched(slow, devices=2, folder=tmp_path, answered_within=SOON)
    assert results == [2**0.5, ("go", 2**0.5)]

"""The benchmarks of a running API, over small ledgers."""

from argparse import Namespace

import pytest

from benchmarks import api_load


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(api_load, "ROUND_S", 0.3)
    monkeypatch.setattr(api_load, "ROUNDS", 1)
    monkeypatch.setattr(api_load, "STEADY_ROUNDS", 1)
    monkeypatch.setattr(api_load, "EARLIER", (5, 100))
    monkeypatch.setitem(api_load.AT_ONCE_POLICY, "parameters", {"capacity": 18_000})
    monkeypatch.setattr(api_load, "RECORDS", 20_000)


@pytest.mark.slow
def test_the_api_is_loaded_beside_a_bare_one(monkeypatch):
    monkeypatch.setattr(api_load, "FILLED", 200)
    (document,) = api_load.run(Namespace())
    for ledger in ("empty_ledger", "filled_ledger"):
        assert all(document[ledger][call]["errors"] == 0 for call in ("accept", "poll"))
        assert all(document[ledger][call]["bare_per_s"] > 0 for call in ("accept", "poll"))
    assert "| polling one, 200 requests in the ledger |" in api_load.table(document)
    assert document["start_to_first_answer_s"] > 0
    once = document["at_once"]
    assert [(each["earlier_requests"], each["errors"]) for each in once] == [(5, 0), (100, 0)]
    assert "| requests that need no run, 100 before |" in api_load.table(document)

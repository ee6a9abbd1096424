"""The benchmarks of a running API, over small ledgers."""

from argparse import Namespace

import pytest

from benchmarks import api_load, at_once


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for module in (api_load, at_once):
        monkeypatch.setattr(module, "ROUND_S", 0.3)
        monkeypatch.setattr(module, "ROUNDS", 1)
    monkeypatch.setattr(api_load, "RECORDS", 20_000)


@pytest.mark.slow
def test_the_api_is_loaded_beside_a_bare_one(monkeypatch):
    monkeypatch.setattr(api_load, "FILLED", 200)
    monkeypatch.setattr(api_load, "STEADY_ROUNDS", 1)
    (document,) = api_load.run(Namespace())
    for ledger in ("empty_ledger", "filled_ledger"):
        assert all(document[ledger][call]["errors"] == 0 for call in ("accept", "poll"))
        assert all(document[ledger][call]["bare_per_s"] > 0 for call in ("accept", "poll"))
    assert "| polling one, 200 requests in the ledger |" in api_load.table(document)
    assert document["start_to_first_answer_s"] > 0


@pytest.mark.slow
def test_requests_that_need_no_run_are_certified_as_they_come(monkeypatch):
    monkeypatch.setitem(at_once.POLICY, "parameters", {"capacity": 18_000})
    (document,) = at_once.run(Namespace(earlier=[5, 100]))
    assert [each["errors"] for each in document["measured"]] == [0, 0]
    assert document["measured"][1]["earlier_requests"] == 100
    assert at_once.table(document).count("\n") == 3

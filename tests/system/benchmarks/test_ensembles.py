"""The benchmark of ensembles, on small data."""

import json
from dataclasses import replace

import numpy as np
import pytest

from app.accounting.exact import expected_members
from benchmarks import ensembles_cases
from benchmarks.data import load
from benchmarks.ensembles import leaving, measure, row_of, table
from benchmarks.leaving_out import Ensemble


@pytest.mark.parametrize("public", [False, True])
def test_a_request_costs_one_member_and_a_hundred_cost_what_is_expected(public):
    row = row_of(ensembles_cases.digits(public=public), 4)
    assert row["each"] == pytest.approx(1 / 4, rel=0.1)
    assert row["together"] == pytest.approx(expected_members(4, 100) / 4, rel=0.05)
    assert row["accuracy"] > 0.8


def test_all_records_of_a_person_enter_one_member_and_leave_together(monkeypatch):
    case = ensembles_cases.churn(customers=300)
    learned = []
    real = ensembles_cases.Case.trained

    def watched(case, chosen=None):
        learned.append(chosen)
        return real(case, chosen)

    monkeypatch.setattr(ensembles_cases.Case, "trained", watched)
    ensemble = Ensemble(replace(case, recipe=replace(case.recipe, epochs=1)), 3)
    gone = np.isin(np.arange(300), leaving(case))
    ensemble.train(~gone)
    kept = np.concatenate(learned)
    assert len(learned) == 3
    assert sorted(case.person[kept]) == sorted(np.flatnonzero(~gone).tolist() * 2)
    assert len(set(kept)) == len(kept) == 400
    people = [set(case.person[chosen]) for chosen in learned]
    assert sum(map(len, people)) == len(set().union(*people))


def test_what_was_measured_is_kept():
    case = replace(ensembles_cases.churn(customers=300), sizes=(1, 2))
    steps = [json.loads(json.dumps(found)) for found in measure(case, {})]
    assert [len(found["rows"]) for found in steps] == [1, 2, 2]
    known = steps[-1] | {"rows": [row | {"accuracy": 0.125} for row in steps[-1]["rows"]]}
    (again,) = measure(case, known)
    assert [row["accuracy"] for row in again["rows"]] == [0.125, 0.125]
    assert again["rivals"] == known["rivals"]
    assert "| customers | 12.50% |" in table({"churn": again})


def test_texts_stand_on_frozen_weights_that_are_kept(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    monkeypatch.setenv("TEXT_WEIGHTS", "")
    built = ensembles_cases._module

    def quickly(folder, name):
        module = built(folder, name)
        if name == "data":
            monkeypatch.setattr(module, "STEPS", 1)
        return module

    monkeypatch.setattr(ensembles_cases, "_module", quickly)
    case = ensembles_cases.texts(cache=tmp_path, epochs=1, most=40)
    assert set(np.bincount(case.person)) <= {0, 1, 3}
    assert len(case.train) + len(case.test) == 120
    features = case.features_of(case.test)
    assert features.shape == (len(case.test), 64)
    assert all(
        each.requires_grad == ("lora" in name or "head" in name)
        for name, each in case.start().named_parameters()
    )
    monkeypatch.setattr(ensembles_cases, "_module", built)
    again = ensembles_cases.texts(cache=tmp_path, epochs=1, most=40)
    assert np.array_equal(again.features_of(again.test), features)


def test_the_public_half_is_not_the_other_half():
    public, private = ensembles_cases.public_half(load("digits"))
    rows = np.concatenate([part.inputs.flatten(1).numpy() for part in (public, private)])
    everything = load("digits").train.inputs.flatten(1).numpy()
    assert sorted(map(bytes, rows)) == sorted(map(bytes, everything))

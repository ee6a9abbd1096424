"""The benchmark of ensembles, on small data."""

import json
from dataclasses import replace

import numpy as np
import pytest

from app.domain.architectures import ArchitectureSpec
from app.domain.recipes import TrainingRecipe
from benchmarks import ensembles, ensembles_cases
from benchmarks.ensembles import (
    figure,
    gradient_clipping,
    leaving,
    measure,
    ridge_head,
    row_of,
    table,
)
from workers.training.networks.architectures import build


@pytest.mark.parametrize("public", [False, True])
def test_a_request_costs_one_member_and_a_hundred_cost_what_is_expected(public):
    row = row_of(ensembles_cases.digits(public=public), 4)
    assert row.each == pytest.approx(1 / 4, rel=0.1)
    assert row.together == pytest.approx(row.expected, rel=0.05)
    assert row.accuracy > 0.8
    assert row.after > 0.8


def test_all_records_of_a_person_enter_one_member_and_leave_together(monkeypatch):
    case = ensembles_cases.churn(customers=300)
    learned = []
    real = ensembles._trained

    def watched(case, chosen):
        learned.append(chosen)
        return real(case, chosen)

    monkeypatch.setattr(ensembles, "_trained", watched)
    row_of(replace(case, recipe=replace(case.recipe, epochs=1)), 3)
    first, again = learned[:3], learned[3:]
    assert (np.sum(first, axis=0) == 1).all()
    for member in first:
        assert (np.bincount(case.person[member], minlength=300) % 2 == 0).all()
    gone = np.isin(case.person, leaving(case))
    assert gone.sum() == 200
    assert (np.sum(again, axis=0) == ~gone).all()


def test_members_are_not_trained_anew_where_that_is_not_asked_for():
    case = replace(ensembles_cases.churn(customers=300), answered=(4,))
    assert row_of(case, 2).after is None
    assert row_of(case, 4).after is not None


def test_what_else_forgets_learns_something():
    case = ensembles_cases.digits(public=True)
    left = np.arange(len(case.train)) >= 100
    head, noisy = ridge_head(case, left), gradient_clipping(case, left)
    assert (head["gradients"], noisy["gradients"]) == (0.0, 1.0)
    assert head["accuracy"] > 0.8
    assert noisy["accuracy"] > 0.5


def test_what_was_measured_is_kept_and_drawn(tmp_path):
    case = replace(ensembles_cases.churn(customers=300), sizes=(1, 2))
    steps = [json.loads(json.dumps(found)) for found in measure(case, {})]
    assert [len(found["rows"]) for found in steps] == [1, 2, 2]
    known = steps[-1] | {"rows": [row | {"accuracy": 0.125} for row in steps[-1]["rows"]]}
    (again,) = measure(case, known)
    assert [row["accuracy"] for row in again["rows"]] == [0.125, 0.125]
    assert again["rivals"] == known["rivals"]
    picture = figure({"churn": again}, tmp_path / "picture.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "| customers | 2 | 12.50% |" in table({"churn": again})


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


def test_weights_that_are_missing_are_drawn():
    def network():
        return build(
            ArchitectureSpec("mlp", {"hidden": [4]}),
            input_shape=(8, 8),
            classes=10,
            allowed_factories=(),
        )

    case = ensembles_cases.digits(public=False)
    body = {name: each for name, each in network().state_dict().items() if name.startswith("1.")}
    case = replace(case, random=network, public=body, recipe=TrainingRecipe(epochs=1))
    one, other = case.start().state_dict(), case.start().state_dict()
    assert body
    for name in one:
        if name.endswith("weight"):  # biases begin with zeros anyway
            assert one[name].equal(other[name]) == (name in body), name

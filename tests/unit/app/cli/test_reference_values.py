"""Quantities of MATH.md, one of each kind, through ``expunge account … --json``."""

import json

import pytest
from typer.testing import CliRunner

from app.cli.main import app

SGD = {
    "weight_decay": 1e-6 * 11264,
    "smoothness": 0.25,
    "lipschitz": 1.0,
    "learning_rate": 1 / (0.25 + 1e-6 * 11264),
}
LINEAGE = {
    "learning_rate": 1.0,
    "weight_decay": 0.01,
    "smoothness": 0.25,
    "lipschitz": 1.0,
    "batch_size": 100,
    "batches": 10,
}
TRAINED = [{"steps": 40, "noise_std": 0.0}, {"release": 0.5}]
RUN = [{"steps": 20, "noise_std": 0.0}, {"release": 0.3}]
REQUEST = {"forget": [[4, 1]]}


def account(mechanism, **parameters):
    command = ["account", "--mechanism", mechanism, "--json"]
    for name, value in parameters.items():
        text = value if isinstance(value, str) else json.dumps(value)
        command += ["--param", f"{name}={text}"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def quantity(name, **parameters):
    return account(name, **parameters)["value"]


@pytest.mark.parametrize(
    ("name", "parameters", "expected", "digits"),
    [
        ("gaussian_mu", {"epsilon": 1, "delta": 1e-5}, 0.268051123211, 12),
        ("gaussian_epsilon", {"mu": 1, "delta": 1e-5}, 4.377178095681, 11),
        (
            "chain_mu",
            {"contraction": 1, "shift": 0.2, "noise_std": [5] + [0.01] * 20}
            | {"start_distance": 1, "steps": 21},
            0.24,
            12,
        ),
        (
            "present_mu",
            {"contraction": 0.95, "shift": 0.1, "noise_std": [0.3] * 20 + [0.03] * 20, "steps": 40},
            14.3763,
            4,
        ),
        (
            "worst_case_drift",
            SGD | {"batch_size": 128, "batches": 88, "neighbours": "replacement"},
            0.0610687987,
            10,
        ),
    ],
)
def test_a_number_comes_out_to_the_digits_given(name, parameters, expected, digits):
    assert quantity(name, **parameters) == pytest.approx(expected, abs=0.5001 * 10**-digits)


@pytest.mark.parametrize(
    ("start", "noise_std", "steps", "printed", "exact"),
    [
        # MATH.md prints what a coarser grid gives, rounded up; the worst chain itself comes from
        # tests/unit/app/accounting/chains/test_reflection.py.
        (2, 0.275702, 5, 0.31959, 0.3188613),
        (2, 0.275702, 11, 0.045883, 0.04558948),
        (2, 0.275702, 20, 0.0024894, 0.00245808),
        (2, 0.275702, 38, 7.327e-6, 7.14592e-6),
        (40, 0.25679, 11, 0.23375, 0.2302897),
    ],
)
def test_the_worlds_meet_as_fast_as_they_can(start, noise_std, steps, printed, exact):
    chain = {"contraction": 0.5, "shift": 0.2, "start_distance": start}
    found = quantity("reflection_delta", **chain, noise_std=noise_std, steps=steps)
    assert exact <= found <= exact * 1.002
    assert found < printed < found * 1.03


def test_the_coupling_needs_as_many_steps_as_stated():
    chain = {"contraction": 0.5, "shift": 0.2, "start_distance": 40, "noise_std": 0.25679}
    assert quantity("reflection_delta", **chain, steps=45) <= 1e-5
    assert quantity("reflection_delta", **chain, steps=43) > 1e-5


def test_one_history_and_what_it_guarantees():
    history = {"recipe": LINEAGE, "events": [*TRAINED, REQUEST, *RUN]}
    found = account("tracked_release", history=history)
    assert found["mu"] == pytest.approx(0.0530925843, abs=0.5001e-10)
    assert found["neighbouring_relation"] == "zero_out"


def test_the_drift_of_that_history():
    history = {"recipe": LINEAGE, "events": [*TRAINED, REQUEST]}
    assert quantity("history_drift", history=history) == pytest.approx(0.0329231746, abs=0.5001e-10)


def test_a_malformed_history_is_an_error_in_words():
    command = ["account", "--mechanism", "tracked_release", "--param", 'history={"events": []}']
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "history" in result.output


def test_model_clipping_takes_fewer_steps_than_theorem_4_2():
    sizes = {"initial_clip": 1.0, "model_clip": 0.5, "noise_std": 0.5}
    assert quantity("model_clipping_steps", epsilon=1, delta=1e-5, **sizes) == 6
    named = account("koloskova_theorem_4_2", epsilon=1, **sizes, steps=18)
    assert named["epsilon"] == 1


def test_an_unknown_name_is_an_error_in_words():
    result = CliRunner().invoke(app, ["account", "--mechanism", "magic"])
    assert result.exit_code == 1
    assert "magic" in result.output

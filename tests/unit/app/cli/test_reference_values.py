"""Every reference value of MATH.md, through ``expunge account … --json``."""

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
KOLOSKOVA = {
    "initial_clip": 20,
    "gradient_clip": 10,
    "learning_rate": 0.01,
    "weight_decay": 50,
    "noise_std": 0.25679,
    "steps": 11,
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
        ("gaussian_mu", {"epsilon": 0.1, "delta": 1e-5}, 0.032520784056, 12),
        ("gaussian_mu", {"epsilon": 8, "delta": 1e-5}, 1.666030597846, 12),
        ("gaussian_epsilon", {"mu": 1, "delta": 1e-5}, 4.377178095681, 11),
        ("gaussian_epsilon", {"mu": 0.5, "delta": 1e-5}, 1.993091404415, 11),
        ("gaussian_epsilon", {"mu": 2, "delta": 1e-5}, 9.997256146434, 11),
        (
            "chain_mu",
            {"contraction": 0.5, "shift": 0.2, "noise_std": 0.25679, "start_distance": 40}
            | {"steps": 11},
            1.41421246110,  # MATH.md prints 1.4142124610; the last digit is a rounding slip
            10,
        ),
        (
            "chain_mu",
            {"contraction": 1, "shift": 0.02, "noise_std": 0.5, "start_distance": 2, "steps": 50},
            0.848528137424,
            12,
        ),
        (
            "chain_mu",
            {"contraction": 1, "shift": 0.02, "noise_std": 0.5, "start_distance": 2, "steps": 400},
            0.8,
            12,
        ),
        (
            "chain_mu",
            {"contraction": 1, "shift": 0.2, "noise_std": [5] + [0.01] * 20}
            | {"start_distance": 1, "steps": 21},
            0.24,
            12,
        ),
        (
            "present_mu",
            {"contraction": 0.95, "shift": 0.1, "noise_std": 0.3, "steps": 100},
            2.069377704,
            9,
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
        (
            "worst_case_drift",
            SGD | {"batch_size": 11264, "batches": 1, "neighbours": "replacement"},
            0.0157632118,
            10,
        ),
        (
            "worst_case_drift",
            SGD | {"batch_size": 128, "batches": 88},
            0.0610687987 / 2,
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


@pytest.mark.parametrize(("steps", "epsilon"), [(5, 6.573), (37, 0.0), (40, 0.0)])
def test_a_published_setting_converges_to_what_it_claimed(steps, epsilon):
    sizes = {"initial_clip": 1, "gradient_clip": 10, "learning_rate": 0.01, "weight_decay": 50}
    command = ["account", "--mechanism", "gradient_clipping", "--delta", "1e-5", "--json"]
    for name, value in {**sizes, "noise_std": 0.275702, "steps": steps}.items():
        command += ["--param", f"{name}={value}"]
    result = CliRunner().invoke(app, command)
    assert round(json.loads(result.output)["epsilon"], 3) == epsilon


def test_the_coupling_needs_as_many_steps_as_stated():
    chain = {"contraction": 0.5, "shift": 0.2, "start_distance": 40, "noise_std": 0.25679}
    assert quantity("reflection_delta", **chain, steps=45) <= 1e-5
    assert quantity("reflection_delta", **chain, steps=43) > 1e-5


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([*TRAINED, REQUEST], 0.0658463492),
        ([*TRAINED, REQUEST, *RUN], 0.0530925843),
        ([*TRAINED, *RUN, REQUEST], 0.0893312428),
        # MATH.md prints 0.0897603098; the last digit is a rounding slip.
        ([TRAINED[0], REQUEST, *RUN], 0.0897603097),
    ],
    ids=["a release already made", "topped up", "present all along", "the last noise alone"],
)
def test_one_history_and_what_it_guarantees(events, expected):
    found = account("tracked_release", history={"recipe": LINEAGE, "events": events})
    assert found["mu"] == pytest.approx(expected, abs=0.5001e-10)
    assert found["neighbouring_relation"] == "zero_out"


def test_the_drift_of_that_history():
    history = {"recipe": LINEAGE, "events": [*TRAINED, REQUEST]}
    assert quantity("history_drift", history=history) == pytest.approx(0.0329231746, abs=0.5001e-10)


def test_a_malformed_history_is_an_error_in_words():
    command = ["account", "--mechanism", "tracked_release", "--param", 'history={"events": []}']
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "history" in result.output


def test_the_published_gradient_clipping_settings_are_not_epsilon_one():
    found = account("gradient_clipping", **KOLOSKOVA)
    assert round(found["mu"], 6) == 1.414212
    assert round(found["epsilon"], 3) == 6.573


@pytest.mark.parametrize(
    ("model_clip", "steps", "printed"), [(0.5, 6, 18), (0.625, 9, 29), (0.975, 36, 134)]
)
def test_model_clipping_takes_fewer_steps_than_theorem_4_2(model_clip, steps, printed):
    sizes = {"initial_clip": 1.0, "model_clip": model_clip, "noise_std": 0.5}
    assert quantity("model_clipping_steps", epsilon=1, delta=1e-5, **sizes) == steps
    named = account("koloskova_theorem_4_2", epsilon=1, **sizes, steps=printed)
    assert named["epsilon"] == 1


@pytest.mark.parametrize(("steps", "delta"), [(5, 2.483e-4), (6, 2.65341e-8)])
def test_model_clipping_reaches_the_stated_delta(steps, delta):
    sizes = {"initial_clip": 1.0, "model_clip": 0.5, "noise_std": 0.5}
    found = account("model_clipping", epsilon=1, **sizes, steps=steps)
    assert found["delta"] == pytest.approx(delta, rel=1e-3 if steps == 5 else 1e-5)


def test_an_unknown_name_is_an_error_in_words():
    result = CliRunner().invoke(app, ["account", "--mechanism", "magic"])
    assert result.exit_code == 1
    assert "magic" in result.output

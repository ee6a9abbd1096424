"""The update rule against an independent reimplementation of equation 3 in float64."""

import math

import numpy as np
import pytest
import torch

from app.accounting import gaussian
from app.accounting import gradient_clipping as accountant
from app.accounting.precision import grid_of
from app.domain.errors import ParameterError, TargetNotMetError
from app.domain.plan import Plan
from app.planning.mechanisms.catalogue import mechanism_of
from tests.support.insecure_noise import InsecureNoise
from workers.mechanisms.gradient_clipping import GradientClipping, from_plan
from workers.noise.generators import SecureNoise
from workers.training.noisy_phase import Conditions

SIZE = 500
EPSILON, DELTA = 1.0, 1e-5
SETTING = {"initial_clip": 20.0, "gradient_clip": 10.0, "learning_rate": 0.01, "weight_decay": 50.0}
DECREASING = tuple(float(noise) for noise in np.geomspace(4, 1, 12))


def plan_of(parameters):
    return Plan(
        mechanism=accountant.NAME,
        parameters=parameters,
        epsilon=EPSILON,
        delta=DELTA,
        budget_epochs=1.0,
        predicted={},
    )


def mechanism(steps=11, **changes):
    parameters = SETTING | changes
    noise_std = accountant.calibrate(epsilon=EPSILON, delta=DELTA, steps=steps, **parameters)
    return from_plan(plan_of(parameters | {"noise_std": noise_std, "steps": steps}))


def scheduled(noise, more=0):
    """A rule whose every number falls, with just enough noise, and ``more`` steps than needed."""
    steps = len(noise)
    parameters = {
        "initial_clip": 20.0,
        "gradient_clip": np.linspace(10, 5, steps),
        "learning_rate": np.geomspace(0.01, 0.005, steps),
        "weight_decay": np.full(steps, 50.0),
        "noise_std": np.array(noise),
    }
    unit = accountant.account(
        **{
            name: value if name == "initial_clip" else tuple(value)
            for name, value in parameters.items()
        },
        steps=steps,
    )
    target = gaussian.mu_of(epsilon=EPSILON, delta=DELTA)
    parameters["noise_std"] = parameters["noise_std"] * unit.mu / target * (1 + 1e-12)
    return from_plan(
        plan_of(
            {
                name: value if name == "initial_clip" else (*value.tolist(), *[value[-1]] * more)
                for name, value in parameters.items()
            }
            | {"steps": steps + more}
        )
    )


def full(value):
    return torch.full((SIZE,), value, dtype=torch.float64)


def gradient_at(position):
    """A bumpy field whose norm lies on both sides of the clip."""
    return 3 * np.sin(5 * position) + np.roll(position, 1)


def reference_trajectory(rule, start, seed):
    """Equation 3 of Koloskova et al. 2025, written down once more, in NumPy and float64."""

    def clipped(vector, norm):
        return vector * min(1.0, norm / math.sqrt(float(vector @ vector)))

    noise = InsecureNoise(seed, environment="test")
    x = clipped(start, rule.initial_clip)
    positions = [x]
    for step in range(rule.steps):
        clip, rate, decay, noise_std = (
            numbers[step] if isinstance(numbers, tuple) else numbers
            for numbers in (
                rule.gradient_clip,
                rule.learning_rate,
                rule.weight_decay,
                rule.noise_std,
            )
        )
        g = clipped(gradient_at(x), clip)
        xi = torch.zeros(SIZE, dtype=torch.float64)
        noise.add_(xi, noise_std)
        x = x - rate * (g + decay * x) + xi.numpy()
        positions.append(x)
    return positions


def run(rule, start, seed):
    position = torch.tensor(start, dtype=torch.float64)
    noise = InsecureNoise(seed, environment="test")
    going = rule.begin(position, Conditions(noise=noise, epsilon=EPSILON, delta=DELTA))
    positions = [position.clone()]
    while not going.met:
        assert going.steps < rule.steps
        gradient = torch.from_numpy(gradient_at(position.numpy()))
        going.step(position, gradient)
        positions.append(position.clone())
    return going, positions


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weight_decay": 0.0},
        {"initial_clip": 1e4, "gradient_clip": 100.0},
        {"gradient_clip": tuple(np.geomspace(30, 3, 11))},
        {"learning_rate": tuple(np.linspace(0.015, 0.005, 11))},
        {"weight_decay": tuple(np.linspace(20, 80, 11))},
        {
            "gradient_clip": tuple(np.linspace(5, 20, 11)),
            "learning_rate": tuple(np.geomspace(0.015, 0.001, 11)),
            "weight_decay": tuple(np.linspace(60, 20, 11)),
        },
    ],
)
def test_trajectory_equals_the_equation_in_float64(changes):
    rule = mechanism(**changes)
    start = 3 * np.random.default_rng(0).standard_normal(SIZE)
    going, positions = run(rule, start, seed=5)
    expected = reference_trajectory(rule, start, seed=5)
    assert going.steps == rule.steps == len(positions) - 1
    for ours, theirs in zip(positions, expected, strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-6 * scale)


def test_a_decreasing_noise_schedule_follows_the_equation_and_is_counted_step_by_step():
    rule = scheduled(DECREASING)
    going, positions = run(rule, np.ones(SIZE), seed=6)
    expected = reference_trajectory(rule, np.ones(SIZE), seed=6)
    assert going.steps == rule.steps == len(DECREASING)
    for ours, theirs in zip(positions, expected, strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-6 * scale)
    assert going.guarantee() == accountant.account(**vars(rule))


def test_a_schedule_stops_early_and_the_steps_taken_account_for_themselves():
    rule = scheduled(DECREASING, more=40)
    going, _ = run(rule, np.ones(SIZE), seed=6)
    assert going.steps == len(DECREASING)
    plan = plan_of(vars(rule))
    for steps, meets in ((going.steps, True), (going.steps - 1, False)):
        taken = mechanism_of(plan).taken(plan, steps).account()
        assert taken.meets(epsilon=EPSILON, delta=DELTA) is meets
    assert going.guarantee() == mechanism_of(plan).taken(plan, going.steps).account()


def test_two_starts_with_the_same_noise_end_within_the_odometers_drift():
    rule = mechanism(steps=8, weight_decay=20.0)
    generator = np.random.default_rng(1)
    odometer = accountant.Odometer(initial_clip=rule.initial_clip)
    size = accountant.step_size(
        gradient_clip=rule.gradient_clip,
        learning_rate=rule.learning_rate,
        weight_decay=rule.weight_decay,
    )
    for _ in range(rule.steps):
        odometer.step(size, rule.noise_std)
    drift = odometer._chain.drift
    direction = generator.standard_normal(SIZE)
    pairs = [(100 * direction, -100 * direction)]  # the theorem's worst starts
    pairs += [tuple(50 * generator.standard_normal((2, SIZE))) for _ in range(5)]
    furthest = 0.0
    for first, second in pairs:
        ends = [run(rule, start, seed=7)[1][-1] for start in (first, second)]
        furthest = max(furthest, float(torch.dist(*ends)))
    assert 0.5 * drift < furthest <= drift


def test_steps_taken_meet_the_target_and_one_fewer_do_not():
    rule = mechanism(steps=11)
    going, _ = run(rule, np.ones(SIZE), seed=0)
    assert going.steps == 11
    assert going.guarantee().meets(epsilon=EPSILON, delta=DELTA)
    one_fewer = accountant.account(**SETTING, noise_std=rule.noise_std, steps=10)
    assert not one_fewer.meets(epsilon=EPSILON, delta=DELTA)


def test_more_planned_steps_than_needed_are_not_taken():
    rule = mechanism(steps=11)
    longer = GradientClipping(**{**vars(rule), "steps": 500})
    assert run(longer, np.ones(SIZE), seed=0)[0].steps == 11


def test_too_little_noise_is_refused_before_anything_changes():
    rule = mechanism()
    weaker = GradientClipping(**{**vars(rule), "noise_std": rule.noise_std * 0.999})
    position = full(100.0)
    with pytest.raises(TargetNotMetError):
        weaker.begin(position, Conditions(noise=SecureNoise(), epsilon=EPSILON, delta=DELTA))
    assert (position == 100.0).all()


def test_the_start_is_clipped_and_a_start_inside_the_clip_is_left_alone():
    rule = mechanism()
    outside, inside = full(100.0), full(0.1)
    for position in (outside, inside):
        rule.begin(position, Conditions(noise=SecureNoise(), epsilon=EPSILON, delta=DELTA))
    assert 20.0 * (1 - 1e-6) < float(outside.norm()) <= 20.0
    assert (inside == 0.1).all()


def test_every_iterate_is_a_point_of_the_public_grid_of_its_own_noise():
    rule = scheduled(DECREASING)
    _, positions = run(rule, np.ones(SIZE), seed=6)
    for position, noise_std in zip(positions[1:], rule.noise_std, strict=True):
        assert (position / grid_of(noise_std)).frac().eq(0).all()


def test_the_numbers_drawn_are_those_of_the_steps_taken():
    rule, noise = mechanism(steps=3), InsecureNoise(1, environment="test")
    position = full(1.0)
    going = rule.begin(position, Conditions(noise=noise, epsilon=EPSILON, delta=DELTA))
    for _ in range(3):
        going.step(position, torch.ones(SIZE))
    assert noise.drawn == {rule.noise_std: 3 * SIZE}


def test_a_float32_gradient_is_clipped_in_float64():
    """Of equal entries, so that each must move by the clip's share, up to the clip's margin."""
    rule = mechanism(steps=1, gradient_clip=2.0)
    position, expected = full(0.1), full(0.05)
    going = rule.begin(
        position, Conditions(noise=InsecureNoise(3, environment="test"), epsilon=1, delta=DELTA)
    )
    going.step(position, torch.full((SIZE,), 3e30))
    expected -= rule.learning_rate * 2.0 / math.sqrt(SIZE) * (1 - 2.0**-22)
    InsecureNoise(3, environment="test").add_(expected, rule.noise_std)
    assert (position - expected).abs().max() <= grid_of(rule.noise_std)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_counts_as_zero(value):
    rule = mechanism()
    start = full(1.0)
    start[3] = value
    noise = InsecureNoise(4, environment="test")
    going = rule.begin(start, Conditions(noise=noise, epsilon=EPSILON, delta=DELTA))
    assert not start.any()
    gradient = torch.ones(SIZE)
    gradient[0] = value
    position = full(1.0)
    going.step(position, gradient)
    expected = full(0.5)
    InsecureNoise(4, environment="test").add_(expected, rule.noise_std)
    assert torch.equal(position, expected)


def test_noise_has_the_standard_deviation_that_was_accounted_for():
    size = 200_000
    rule = mechanism(steps=1)
    position = torch.zeros(size, dtype=torch.float64)
    going = rule.begin(position, Conditions(noise=SecureNoise(), epsilon=EPSILON, delta=DELTA))
    going.step(position, torch.zeros(size))
    # Six standard errors: fails by chance less than once in 1e8 runs.
    assert float(position.std()) == pytest.approx(rule.noise_std, rel=6 / (2 * size) ** 0.5)


@pytest.mark.parametrize("fault", ["missing", "unknown", "range"])
def test_parameters_of_a_plan_are_checked_by_name(fault):
    parameters = SETTING | {"noise_std": 1.0, "steps": 3}
    assert from_plan(plan_of(parameters)).steps == 3
    if fault == "missing":
        del parameters["gradient_clip"]
    elif fault == "unknown":
        parameters["momentum"] = 0.9
    else:
        parameters["weight_decay"] = 100.0
    with pytest.raises(ParameterError):
        from_plan(plan_of(parameters))

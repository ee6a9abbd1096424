"""The update rule against an independent reimplementation of equation 3 in float64."""

import math

import numpy as np
import pytest
import torch

from app.accounting import gaussian
from app.accounting import gradient_clipping as accountant
from app.domain.errors import ParameterError, TargetNotMetError
from app.domain.plan import Plan
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.mechanisms.vectors import clip_
from workers.noise import InsecureNoise, SecureNoise
from workers.run import _as_taken

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
    return GradientClipping.from_plan(
        plan_of(parameters | {"noise_std": noise_std, "steps": steps})
    )


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
    return GradientClipping.from_plan(
        plan_of(
            {
                name: value if name == "initial_clip" else (*value.tolist(), *[value[-1]] * more)
                for name, value in parameters.items()
            }
            | {"steps": steps + more}
        )
    )


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
        xi = torch.empty(SIZE, dtype=torch.float64)
        noise.normal_(xi)
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
        x = x - rate * (g + decay * x) + noise_std * xi.numpy()
        positions.append(x)
    return positions


def run(rule, start, seed):
    position = torch.tensor(start, dtype=torch.float32)
    noise = InsecureNoise(seed, environment="test")
    going = rule.begin(position, noise=noise, epsilon=EPSILON, delta=DELTA)
    positions = [position.clone()]
    while not going.met:
        assert going.steps < rule.steps
        gradient = torch.from_numpy(gradient_at(position.double().numpy())).float()
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
        np.testing.assert_allclose(ours.double().numpy(), theirs, rtol=0, atol=3e-6 * scale)


def test_a_decreasing_noise_schedule_follows_the_equation_and_is_counted_step_by_step():
    rule = scheduled(DECREASING)
    going, positions = run(rule, np.ones(SIZE), seed=6)
    expected = reference_trajectory(rule, np.ones(SIZE), seed=6)
    assert going.steps == rule.steps == len(DECREASING)
    for ours, theirs in zip(positions, expected, strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours.double().numpy(), theirs, rtol=0, atol=3e-6 * scale)
    assert going.guarantee() == accountant.account(**vars(rule))


def test_a_schedule_stops_early_and_the_steps_taken_account_for_themselves():
    rule = scheduled(DECREASING, more=40)
    going, _ = run(rule, np.ones(SIZE), seed=6)
    assert going.steps == len(DECREASING)
    plan = plan_of(vars(rule))
    for steps, meets in ((going.steps, True), (going.steps - 1, False)):
        taken = accountant.account(**_as_taken(plan, steps))
        assert taken.meets(epsilon=EPSILON, delta=DELTA) is meets
    assert going.guarantee() == accountant.account(**_as_taken(plan, going.steps))


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
        ends = [run(rule, start, seed=7)[1][-1].double() for start in (first, second)]
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
    position = torch.full((SIZE,), 100.0)
    with pytest.raises(TargetNotMetError):
        weaker.begin(position, noise=SecureNoise(), epsilon=EPSILON, delta=DELTA)
    assert (position == 100.0).all()


def test_the_start_is_clipped_and_a_start_inside_the_clip_is_left_alone():
    rule = mechanism()
    outside, inside = torch.full((SIZE,), 100.0), torch.full((SIZE,), 0.1)
    for position in (outside, inside):
        rule.begin(position, noise=SecureNoise(), epsilon=EPSILON, delta=DELTA)
    assert 20.0 * (1 - 1e-6) < float(outside.double().norm()) <= 20.0
    assert (inside == 0.1).all()


@pytest.mark.parametrize("size", [1, 3, 1000, 100_000])
def test_a_clipped_vector_never_exceeds_the_norm(size):
    generator = torch.Generator().manual_seed(size)
    for exponent in (-10.0, 0.0, 3.0, 18.0):
        vector = torch.randn(size, generator=generator) * 10**exponent
        clip_norm = float(vector.double().norm()) * 0.7
        clip_(vector, clip_norm)
        assert clip_norm * (1 - 1e-6) < float(vector.double().norm()) <= clip_norm


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_counts_as_zero(value):
    rule = mechanism()
    start = torch.full((SIZE,), 1.0)
    start[3] = value
    noise = InsecureNoise(4, environment="test")
    going = rule.begin(start, noise=noise, epsilon=EPSILON, delta=DELTA)
    assert not start.any()
    gradient = torch.ones(SIZE)
    gradient[0] = value
    position = torch.ones(SIZE)
    going.step(position, gradient)
    expected = torch.empty(SIZE)
    InsecureNoise(4, environment="test").normal_(expected)
    torch.testing.assert_close(position, 0.5 + rule.noise_std * expected)


def test_noise_has_the_standard_deviation_that_was_accounted_for():
    size = 200_000
    rule = mechanism(steps=1)
    position = torch.zeros(size)
    going = rule.begin(position, noise=SecureNoise(), epsilon=EPSILON, delta=DELTA)
    going.step(position, torch.zeros(size))
    # Six standard errors: fails by chance less than once in 1e8 runs.
    assert float(position.double().std()) == pytest.approx(
        rule.noise_std, rel=6 / (2 * size) ** 0.5
    )


@pytest.mark.parametrize("fault", ["missing", "unknown", "range"])
def test_parameters_of_a_plan_are_checked_by_name(fault):
    parameters = SETTING | {"noise_std": 1.0, "steps": 3.0}
    assert GradientClipping.from_plan(plan_of(parameters)).steps == 3
    if fault == "missing":
        del parameters["gradient_clip"]
    elif fault == "unknown":
        parameters["momentum"] = 0.9
    else:
        parameters["weight_decay"] = 100.0
    with pytest.raises(ParameterError):
        GradientClipping.from_plan(plan_of(parameters))

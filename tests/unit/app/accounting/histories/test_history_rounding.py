"""What the accountant says of floats, against steps computed with more digits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from app.accounting.histories.history import History
from app.accounting.histories.history_account import reaches, residue_of, step_error
from app.accounting.precision import NONE, grid_of, noise_norm, sampling_residue
from app.domain.errors import ParameterError
from app.domain.tasks.built_in import ClassificationSpec, MultiLabelSpec, RegressionSpec
from app.domain.tasks.spec import WeightColumn
from tests.support.histories import recipe
from tests.support.specs import classification, multi_label, regression
from workers.training.tasks.catalogue import task_of
from workers.training.tasks.task import INPUTS, TARGET, WEIGHT


def trained(**change):
    """A tracked lineage with a dimension."""
    return History(recipe(**{"dimension": 50, **change})).after_steps(40)


def reach_of(history):
    """The furthest that any iterate of a lineage may be."""
    return max(reaches(history))


def exact_step(weights, features, labels, constants, *, radius=None):
    """One step in 64-bit mantissas: 2048 times finer than float64."""
    wide, batch = weights.astype(np.longdouble), features.astype(np.longdouble)
    logits = batch @ wide.T
    if len(wide) == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = shifted / shifted.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    if len(wide) == 1:
        chances = chances[:, 1:]
    rate = np.longdouble(constants.learning_rate)
    moved = np.longdouble(constants.contraction) * wide - rate * (
        chances.T @ batch / np.longdouble(constants.batch_size)
    )
    length = np.sqrt((moved**2).sum())
    return moved if radius is None or length <= radius else moved * (radius / length)


def float_step(weights, features, labels, constants, *, radius=None):
    """The same in float64, as a worker computes it."""
    held = torch.from_numpy(weights.copy()).requires_grad_()
    logits = linear(torch.from_numpy(features), held)
    if len(weights) == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    losses = cross_entropy(logits, torch.from_numpy(labels), reduction="none")
    (losses.sum() / constants.batch_size).backward()
    position = held.detach().reshape(-1)
    position.mul_(constants.contraction)
    position.sub_(held.grad.reshape(-1), alpha=constants.learning_rate)
    length = float(torch.linalg.vector_norm(position))
    if radius is not None and length > radius:
        position.mul_(radius / length)
    return position.numpy().reshape(weights.shape)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("length", [0.0, 1.0, 300.0])
@pytest.mark.parametrize("radius", [None, 0.7])
def test_a_step_in_float64_is_off_by_no_more_than_its_bound(classes, length, radius):
    draws = np.random.default_rng(classes)
    constants = recipe(
        smoothness=0.5,
        lipschitz=math.sqrt(2),
        learning_rate=0.9,
        batch_size=64,
        radius=radius,
        dimension=40 * (1 if classes == 2 else classes),
    )
    for _ in range(20):
        weights = draws.standard_normal((1 if classes == 2 else classes, 40))
        weights *= length / np.linalg.norm(weights)
        features = draws.standard_normal((64, 40))
        features /= np.linalg.norm(features, axis=1, keepdims=True) * (1 + 1e-9)
        labels = draws.integers(0, classes, 64)
        exact = exact_step(weights, features, labels, constants, radius=radius)
        found = float_step(weights, features, labels, constants, radius=radius)
        off = float(np.sqrt(((found.astype(np.longdouble) - exact) ** 2).sum()))
        assert off <= step_error(constants, reach=max(length, 0.1))


def test_the_bound_of_a_step_term_by_term():
    plain = recipe(dimension=50, learning_rate=0.5, batch_size=4)
    gradient = 50 * 3.0 + 13 * 3.0 + 9 * 50 + 2 * 4 + 40
    update = 4 * (3.0 + 0.5)
    assert step_error(plain, reach=3.0) / 2.0**-53 == pytest.approx(0.5 * gradient + update)
    balled = replace(plain, radius=2.0)
    found = step_error(balled, reach=3.0) / 2.0**-53
    assert found == pytest.approx(0.5 * gradient + update + 60 * 3.0)


def test_the_reach_holds_the_iterates_of_the_longest_way():
    """Every gradient as long as it may be and in one direction, noise at its usual length."""
    draws = np.random.default_rng(3)
    for change in ({}, {"weight_decay": 0.0}, {"radius": 0.05}, {"radius": 3.0}):
        history = (
            History(recipe(dimension=30, **change))
            .after_steps(60, noise_std=0.2)
            .after_release(noise_std=0.4)
            .after_steps(30)
        )
        constants, position, furthest = history.recipe, np.zeros(30), 0.0
        pull = constants.learning_rate * constants.lipschitz
        for step in range(90):
            position = constants.contraction * position
            position += pull * np.eye(30)[0]
            furthest = max(furthest, np.linalg.norm(position))
            position += (0.2 if step < 60 else 0.0) * draws.standard_normal(30)
            furthest = max(furthest, np.linalg.norm(position))
            if constants.radius is not None:
                position *= min(1.0, constants.radius / np.linalg.norm(position))
            if step == 59:
                position += 0.4 * draws.standard_normal(30)
        assert furthest <= reach_of(history)


def test_the_reach_follows_ball_decay_and_length():
    assert reach_of(trained(weight_decay=0.0)) == pytest.approx(1.1 * 41)
    assert reach_of(trained()) == pytest.approx(1.1 * 20)
    assert reach_of(trained(radius=3.0)) == pytest.approx(1.1 * 4)
    noisy = trained().after_release(noise_std=0.5)
    noise = noise_norm(dimension=50, noise_std=0.5)
    assert reach_of(noisy) == pytest.approx(1.1 * (20 + noise))


def test_real_arithmetic_and_no_noise_leave_no_residue():
    assert residue_of(trained()) == NONE
    released = trained().after_release(noise_std=0.5)
    assert residue_of(replace(released, recipe=replace(released.recipe, dimension=None))) == NONE


def test_a_single_release_hides_the_errors_of_all_steps_before():
    history = trained().after_release(noise_std=0.5)
    reach = reach_of(history)
    sampled = sampling_residue(dimension=50, draws=1, reach=reach, noise_std=0.5)
    error = step_error(history.recipe, reach=reach_of(trained())) * (1 - 0.95**40) / 0.05
    found = residue_of(history)
    assert found.mu == pytest.approx(sampled.mu + error / 0.5, rel=1e-9)
    assert found.delta == pytest.approx(sampled.delta, rel=1e-9, abs=0)


def test_every_noisy_step_hides_half_a_cell_of_the_step_before():
    history = History(recipe(dimension=50)).after_steps(6, noise_std=0.5)
    reach = reach_of(history)
    sampled = sampling_residue(dimension=50, draws=6, reach=reach, noise_std=0.5)
    error = step_error(history.recipe, reach=reach)
    half = math.sqrt(50) * grid_of(0.5) / 2
    squares = error**2 + 5 * (0.95 * half + error) ** 2
    found = residue_of(history)
    assert found.mu == pytest.approx(sampled.mu + math.sqrt(squares) / 0.5, rel=1e-9)
    assert found.delta == pytest.approx(sampled.delta, rel=1e-9, abs=0)


def test_a_release_hides_what_the_last_noise_was_rounded_by():
    noisy = History(recipe(dimension=50)).after_steps(6, noise_std=0.5)
    released = noisy.after_release(noise_std=0.01)
    assert residue_of(released).mu > residue_of(noisy).mu
    half = math.sqrt(50) * grid_of(0.5) / 2
    assert residue_of(released).mu > half / 0.01


def test_what_an_event_leaves_does_not_depend_on_later_ones():
    """Else a lineage could not go on from noise that was just large enough."""
    small = trained().after_release(noise_std=5e-7)
    before = residue_of(small)
    later = residue_of(small.after_steps(3).after_release(noise_std=100.0))
    assert before.mu < later.mu < before.mu * 1.1
    with pytest.raises(ParameterError):
        residue_of(trained().after_release(noise_std=100.0).after_release(noise_std=5e-7))


def test_rounding_does_not_add_up_for_ever():
    """Contraction takes away what the grid adds, in the closed form of Theorem 4."""
    short, long = (
        History(recipe(dimension=50)).after_steps(count, noise_std=0.5) for count in (10**3, 10**6)
    )
    walked = [
        residue_of(history).mu
        - sampling_residue(
            dimension=50, draws=history.steps, reach=reach_of(history), noise_std=0.5
        ).mu
        for history in (short, long)
    ]
    assert walked[0] == pytest.approx(walked[1], rel=1e-2)


@pytest.mark.parametrize("count", [1, 7, 10**5])
def test_the_residue_grows_with_dimension_draws_and_reach(count):
    def mu(**change):
        return residue_of(trained(**change).after_steps(count, noise_std=0.3)).mu

    assert mu() < mu(dimension=500)
    assert mu() < mu(weight_decay=1e-6)
    more = trained().after_steps(count + 1, noise_std=0.3)
    assert mu() < residue_of(more).mu


def test_noise_below_what_float64_can_add_is_refused():
    with pytest.raises(ParameterError) as caught:
        residue_of(trained().after_release(noise_std=1e-7))
    assert caught.value.name == "noise_std"


def wide_slopes(spec, scores, batch):
    """The slopes of each record's loss in its scores, in 64-bit mantissas."""
    wide = scores.astype(np.longdouble)
    target = batch[TARGET].numpy().astype(np.longdouble)
    if isinstance(spec, RegressionSpec):
        slopes = np.clip(wide - target, -spec.threshold, spec.threshold)
    elif isinstance(spec, MultiLabelSpec):
        smooth = np.longdouble(spec.label_smoothing)
        slopes = 1 / (1 + np.exp(-wide)) - (target * (1 - smooth) + smooth / 2)
        slopes *= np.array(spec.class_weights).astype(np.longdouble)
    else:
        labels, smooth = batch[TARGET].numpy(), np.longdouble(spec.label_smoothing)
        slopes = np.exp(wide - wide.max(axis=1, keepdims=True))
        slopes /= slopes.sum(axis=1, keepdims=True)
        slopes -= smooth / spec.classes
        slopes[np.arange(len(labels)), labels] -= 1 - smooth
        slopes *= np.array(spec.class_weights).astype(np.longdouble)[labels][:, None]
    return slopes * batch[WEIGHT].numpy().astype(np.longdouble)[:, None]


HEAVY = WeightColumn(column="w", most=5.0)
OTHERS = [
    regression(("a", "b", "c"), loss="huber", threshold=0.3, weight=HEAVY),
    regression(("a",), loss="huber", threshold=40.0, weight=HEAVY),
    multi_label(("a", "b", "c"), class_weights=(0.1, 1.0, 3.0), label_smoothing=0.3, weight=HEAVY),
    classification(4, class_weights=(0.1, 1.0, 3.0, 9.0), label_smoothing=0.3, weight=HEAVY),
]


@pytest.mark.parametrize("spec", OTHERS, ids=lambda spec: f"{spec.name} {spec.outputs}")
@pytest.mark.parametrize("length", [0.0, 1.0, 300.0])
def test_a_step_of_other_losses_is_off_by_no_more_than_its_bound(spec, length):
    draws = np.random.default_rng(5)
    size, count = 20, 64
    constants = recipe(
        smoothness=spec.bounds.smoothness,
        lipschitz=spec.bounds.lipschitz,
        learning_rate=0.9 / spec.bounds.smoothness,
        batch_size=count,
        dimension=size * spec.rows,
    )
    for _ in range(20):
        weights = draws.standard_normal((spec.rows, size))
        weights *= length / np.linalg.norm(weights)
        features = draws.standard_normal((count, size))
        features /= np.linalg.norm(features, axis=1, keepdims=True) * (1 + 1e-9)
        target = draws.standard_normal((count, spec.outputs)).astype(np.float32)
        if isinstance(spec, ClassificationSpec):
            target = draws.integers(0, spec.classes, count)
        elif isinstance(spec, MultiLabelSpec):
            target = draws.integers(0, 2, (count, spec.outputs)).astype(np.float32)
        weight = draws.uniform(0, 5, count).astype(np.float32)
        batch = {TARGET: torch.from_numpy(target), WEIGHT: torch.from_numpy(weight)}
        batch[INPUTS] = torch.from_numpy(features)
        wide = weights.astype(np.longdouble)
        slopes = wide_slopes(spec, features.astype(np.longdouble) @ wide.T, batch)
        rate = np.longdouble(constants.learning_rate)
        exact = np.longdouble(constants.contraction) * wide
        exact -= rate * (slopes.T @ features.astype(np.longdouble) / count)
        held = torch.from_numpy(weights.copy()).requires_grad_()
        losses = task_of(spec).loss(lambda inputs, held=held: linear(inputs, held), batch)
        (losses.sum() / count).backward()
        found = held.detach().mul_(constants.contraction)
        found.sub_(held.grad, alpha=constants.learning_rate)
        off = float(np.sqrt(((found.numpy().astype(np.longdouble) - exact) ** 2).sum()))
        assert off <= step_error(constants, reach=max(length, 0.1))


def test_the_bound_of_a_step_grows_with_slope_and_curvature():
    plain = recipe(dimension=50, smoothness=0.25, lipschitz=1.0)
    for change in ({"lipschitz": 7.0}, {"smoothness": 1.5, "learning_rate": 0.5}):
        other = replace(plain, **change)
        rates = {"learning_rate": other.learning_rate}
        assert step_error(other, reach=3.0) > step_error(replace(plain, **rates), reach=3.0)

"""Exact training: the minimum, compared with scikit-learn's, and the same bits each time."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from app.domain.errors import RunFailedError
from tests.support.specs import classification, language_model
from tests.unit.workers.training.networks.test_head_bounds import SPECS, SQUARED
from workers.training.exact.minimum import loss_of, minimise
from workers.training.tasks.catalogue import task_of
from workers.training.tasks.task import INPUTS, TARGET, WEIGHT

ALL = SPECS | {"squared": SQUARED}

RANDOM = np.random.default_rng(6)
FEATURES = RANDOM.normal(size=(500, 7)) * [3, 1, 0.1, 2, 1, 1, 0.5] + 0.3
FEATURES /= np.linalg.norm(FEATURES, axis=1, keepdims=True)
SCORES = FEATURES @ RANDOM.normal(size=(7, 4)) * 3 + RANDOM.normal(size=(500, 4))


def classified(labels, classes):
    return loss_of(classification(classes), {TARGET: labels})


def minimum(rows=slice(None), *, classes=4, tolerance=1e-8, weight_decay=0.003, most=500):
    return minimise(
        FEATURES[rows],
        classified(SCORES[rows, :classes].argmax(axis=1), classes),
        weight_decay=weight_decay,
        smoothness=0.25 if classes == 2 else 0.5,
        tolerance=tolerance,
        most_evaluations=most,
    )


@pytest.mark.parametrize("classes", [2, 4])
def test_it_is_the_minimum(classes):
    found = minimum(classes=classes)
    expected = LogisticRegression(
        C=1 / (0.003 * len(FEATURES)), fit_intercept=False, tol=1e-12, max_iter=10_000
    ).fit(FEATURES, SCORES[:, :classes].argmax(axis=1))
    assert found.weight == pytest.approx(expected.coef_, abs=1e-5)
    assert found.evaluations < 60


def test_the_same_records_give_the_same_bits_whatever_the_threads():
    with threadpool_limits(limits=1):
        first = minimum().weight
    with threadpool_limits(limits=4):
        assert np.array_equal(minimum().weight, first)


def test_another_order_gives_other_bits_and_the_same_minimum():
    """So the order of the records is part of what is computed."""
    backwards = minimum(slice(None, None, -1)).weight
    assert not np.array_equal(backwards, minimum().weight)
    assert backwards == pytest.approx(minimum().weight, abs=1e-5)


def test_a_tolerance_that_is_not_reached_is_an_error():
    with pytest.raises(RunFailedError, match="larger tolerance"):
        minimum(most=3)
    with pytest.raises(RunFailedError, match="larger tolerance"):
        minimum(tolerance=1e-40)


@pytest.mark.parametrize("count", [1, 3])
def test_a_handful_of_records_has_a_minimum(count):
    assert np.isfinite(minimum(slice(0, count)).weight).all()


def test_no_records_have_none():
    with pytest.raises(RunFailedError, match="no record"):
        minimum(slice(0, 0))


def many(count):
    """Return so many records that the bound is made of some of them."""
    random = np.random.default_rng(7)
    features = random.normal(size=(count, 5))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features, (features[:, 0] + random.normal(size=count) / 4 > 0).astype(np.int64)


def test_of_many_records_the_bound_is_made_of_some_and_the_minimum_of_all():
    features, labels = many(3 * 4096)
    setting = {"weight_decay": 0.001, "smoothness": 0.25, "tolerance": 1e-8}
    found = minimise(features, classified(labels, 2), **setting, most_evaluations=100)
    expected = LogisticRegression(
        C=1 / (0.001 * len(features)), fit_intercept=False, tol=1e-12, max_iter=10_000
    ).fit(features, labels)
    assert found.weight == pytest.approx(expected.coef_, abs=1e-5)
    with threadpool_limits(limits=4):
        again = minimise(features.copy(), classified(labels, 2), **setting, most_evaluations=100)
    assert np.array_equal(again.weight, found.weight)


@pytest.mark.parametrize("spec", ALL.values(), ids=ALL)
@pytest.mark.parametrize("weight_decay", [0.1, 1e-4])
def test_every_task_has_a_minimum_which_the_same_records_give_bit_by_bit(spec, weight_decay):
    def found():
        loss = loss_of(spec, tensors_of(spec))
        setting = {"weight_decay": weight_decay, "smoothness": spec.bounds.smoothness}
        features = FEATURES[:COUNT].copy()
        at = minimise(features, loss, **setting, tolerance=1e-8, most_evaluations=5000).weight
        _, slopes = loss.at(features @ at.T, slice(0, COUNT))
        return at, slopes.T @ features / COUNT + weight_decay * at

    weight, gradient = found()
    assert np.linalg.norm(gradient) <= 1e-8 * (1 + 1e-6)
    assert np.array_equal(found()[0], weight)


def test_the_squared_loss_leads_to_the_ridge_solution():
    targets = SCORES[:, :2]
    loss = loss_of(ALL["squared"], {TARGET: targets})
    setting = {"weight_decay": 0.01, "smoothness": 1.0, "tolerance": 1e-10}
    found = minimise(FEATURES, loss, **setting, most_evaluations=50).weight
    n, size = FEATURES.shape
    normal = FEATURES.T @ FEATURES / n + 0.01 * np.eye(size)
    assert found == pytest.approx(np.linalg.solve(normal, FEATURES.T @ targets / n).T, abs=1e-8)


COUNT = 30


def targets_of(spec, random):
    if spec.name == "classification":
        return random.integers(0, spec.classes, COUNT)
    if spec.name == "multi_label":
        return random.integers(0, 2, (COUNT, spec.outputs)).astype(np.float32)
    return random.normal(size=(COUNT, spec.outputs)).astype(np.float32)


def tensors_of(spec, seed=3):
    random = np.random.default_rng(seed)
    tensors = {TARGET: targets_of(spec, random)}
    if spec.weight is not None:
        tensors[WEIGHT] = random.uniform(0, spec.weight.most, COUNT).astype(np.float32)
    return tensors


@pytest.mark.parametrize("spec", ALL.values(), ids=ALL)
@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])
def test_they_are_those_of_the_task(spec, scale):
    tensors = tensors_of(spec)
    loss = loss_of(spec, tensors)
    assert loss.rows == spec.rows
    scores = scale * np.random.default_rng(4).normal(size=(COUNT, spec.rows))
    held = torch.from_numpy(scores.copy()).requires_grad_()
    outputs = held
    if spec.rows < spec.outputs:
        outputs = torch.cat([torch.zeros_like(held), held], dim=1)
    batch = {name: torch.from_numpy(values) for name, values in tensors.items()}
    expected = task_of(spec).loss(lambda _: outputs, batch | {INPUTS: held}).sum()
    (slopes,) = torch.autograd.grad(expected, held)
    for records in (slice(0, COUNT), slice(0, 7), slice(7, COUNT)):
        _, found = loss.at(scores[records], records)
        assert found == pytest.approx(slopes[records].numpy(), rel=1e-9, abs=1e-9)
    assert loss.at(scores, slice(0, COUNT))[0] == pytest.approx(expected.item(), rel=1e-9)


def test_a_task_without_a_convex_head_has_none():
    with pytest.raises(RunFailedError, match="language_model"):
        loss_of(language_model(9), {TARGET: np.zeros(3)})

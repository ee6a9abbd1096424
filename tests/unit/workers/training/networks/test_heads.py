"""The constants that every certificate of a linear head rests on hold whatever the data."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn.functional import cross_entropy

from app.domain.tasks.built_in import rows_of
from tests.support.specs import classification
from workers.training.networks.heads import LinearHead

SIZE = 5
ANYTHING = arrays(np.float32, (3, SIZE), elements=st.floats(width=32))


def norms(head, features):
    return torch.linalg.vector_norm(head.scaled(features), dim=1)


@given(
    features=ANYTHING,
    bias=st.sampled_from([0.0, 0.1, 0.9]),
    feature_norm=st.sampled_from([None, 1e-6, 2.5, 1e6]),
)
def test_no_norm_is_above_one_whatever_the_features(features, bias, feature_norm):
    head = LinearHead(SIZE, 4, rows=4, feature_norm=feature_norm, bias=bias)
    scaled = head.scaled(torch.from_numpy(features))
    assert torch.isfinite(scaled).all()
    exact = [sum(Fraction(entry) ** 2 for entry in row) for row in scaled.tolist()]
    assert max(exact) <= 1


@given(features=ANYTHING)
def test_a_record_is_scaled_by_itself_alone(features):
    head = LinearHead(SIZE, 4, rows=4, feature_norm=None, bias=0.1)
    together = head.scaled(torch.from_numpy(features))
    for row, record in zip(together, features, strict=True):
        alone = head.scaled(torch.from_numpy(record)[None])[0]
        assert torch.allclose(row, alone, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_is_float64_whatever_the_features(dtype):
    head = LinearHead(SIZE, 4, rows=4, feature_norm=None, bias=0.1)
    features = torch.randn(3, SIZE, dtype=dtype)
    before = features.clone()
    head(features).sum().backward()
    assert torch.equal(features, before)
    found = (head.weight, head.weight.grad, head.scaled(features), head(features))
    assert {tensor.dtype for tensor in found} == {torch.float64}


def test_without_a_feature_norm_every_record_has_the_same_norm():
    features = torch.tensor([[1e-3, 0, 0, 0, 0], [7.0, -3, 2, 1, 9], [1e30, 1e30, 0, 0, 0]])
    assert norms(LinearHead(SIZE, 4, rows=4, feature_norm=None, bias=0), features) == pytest.approx(
        1.0, abs=1e-5
    )


def test_a_feature_norm_keeps_lengths_below_it_and_cuts_those_above():
    features = torch.tensor([[0.5, 0, 0, 0, 0], [2.0, 0, 0, 0, 0], [9.0, 0, 0, 0, 0]])
    found = norms(LinearHead(SIZE, 4, rows=4, feature_norm=2.0, bias=0), features)
    assert found.tolist() == pytest.approx([0.25, 1.0, 1.0], abs=1e-5)


def test_the_bias_is_a_constant_feature_that_counts_in_the_norm():
    head = LinearHead(SIZE, 4, rows=4, feature_norm=None, bias=0.6)
    scaled = head.scaled(torch.randn(8, SIZE))
    assert scaled[:, -1].tolist() == pytest.approx([0.6] * 8, abs=1e-5)
    assert torch.linalg.vector_norm(scaled[:, :-1], dim=1).tolist() == pytest.approx(
        [0.8] * 8, abs=1e-5
    )
    assert head.weight.shape == (4, SIZE + 1)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_gradient_of_a_record_is_within_the_lipschitz_constant(classes):
    torch.manual_seed(0)  # other draws may leave no record on the wrong side
    head = LinearHead(SIZE, classes, rows=rows_of(classes), feature_norm=None, bias=0.1)
    largest = 0.0
    for scale in (0.0, 1.0, 30.0):
        for label in range(classes):
            with torch.no_grad():
                head.weight.normal_().mul_(scale)
            loss = cross_entropy(head(100 * torch.randn(1, SIZE)), torch.tensor([label]))
            (gradient,) = torch.autograd.grad(loss, head.weight)
            largest = max(largest, float(gradient.double().norm()))
    bound = classification(classes).bounds.lipschitz
    assert 0.5 * bound < largest <= bound  # the constant is no idle one


@pytest.mark.parametrize("classes", [2, 3])
def test_the_curvature_of_a_record_is_within_the_smoothness_and_never_negative(classes):
    head = LinearHead(SIZE, classes, rows=rows_of(classes), feature_norm=None, bias=0.1)
    features, label = torch.randn(1, SIZE), torch.tensor([1])
    curvature = classification(classes).bounds.smoothness

    def loss(weight):
        logits = torch.func.functional_call(head, {"weight": weight}, (features,))
        return cross_entropy(logits, label)

    for scale in (0.0, 1.0, 10.0):
        weight = scale * torch.randn_like(head.weight)
        hessian = torch.autograd.functional.hessian(loss, weight)
        eigenvalues = torch.linalg.eigvalsh(hessian.reshape(weight.numel(), -1).double())
        assert float(eigenvalues.max()) <= curvature * (1 + 1e-5)
        assert float(eigenvalues.min()) >= -1e-6


def test_two_classes_share_one_row_and_are_logistic_regression():
    head = LinearHead(SIZE, 2, rows=1, feature_norm=None, bias=0.1)
    assert (head.weight == 0).all()
    with torch.no_grad():
        head.weight.normal_()
    features = torch.randn(4, SIZE)
    score = head.scaled(features) @ head.weight[0]
    logits = head(features)
    assert logits.shape == (4, 2)
    for label, sign in ((1, 1), (0, -1)):
        expected = torch.nn.functional.softplus(-sign * score)
        losses = cross_entropy(logits, torch.full((4,), label), reduction="none")
        assert torch.allclose(losses, expected, rtol=1e-4)


def test_a_fresh_head_says_nothing():
    head = LinearHead(SIZE, 10, rows=10, feature_norm=None, bias=0.1)
    loss = cross_entropy(head(torch.randn(6, SIZE)), torch.arange(6))
    assert float(loss) == pytest.approx(math.log(10), rel=1e-6)

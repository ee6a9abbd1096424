"""The arithmetic of a step: in float64, with the factors that were accounted for."""

import math
from fractions import Fraction

import mpmath
import pytest
import torch

from workers.training.team import ALONE
from workers.training.vectors import clip_, move_, pieces, shrinkage

SIZES = [1, 3, 1000, 100_000]


def numbers(size, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("size", [0, 1, 16384, 16385, 50_000])
def test_pieces_cover_every_vector_once_and_in_step(size):
    one, other = torch.arange(size), torch.arange(size) + 0.5
    first, second = zip(*pieces(one, other), strict=True)
    assert torch.equal(torch.cat(first), one)
    assert torch.equal(torch.cat(second), other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_a_clipped_vector_never_exceeds_the_norm(size, dtype):
    for exponent in (-10.0, 0.0, 3.0, 18.0):
        vector = numbers(size, size, dtype) * 10**exponent
        clip_norm = float(vector.double().norm()) * 0.7
        factor = shrinkage(vector, clip_norm, ALONE)
        assert clip_norm * (1 - 1e-6) < float((factor * vector.double()).norm()) <= clip_norm
        clip_(vector, clip_norm, ALONE)
        assert clip_norm * (1 - 1e-6) < float(vector.double().norm()) <= clip_norm


@pytest.mark.parametrize("size", SIZES)
def test_a_clipped_vector_is_near_the_exact_projection(size):
    vector = numbers(size, size)
    squares = sum(Fraction(entry) ** 2 for entry in vector.tolist())
    with mpmath.workprec(200):
        norm = mpmath.sqrt(mpmath.mpf(squares.numerator) / squares.denominator)
        exact = mpmath.mpf(0.3) * (1 - mpmath.mpf(2) ** -22) / norm
        assert abs(shrinkage(vector, 0.3, ALONE) / exact - 1) <= 2.0**-38


def test_a_vector_within_its_clip_is_left_as_it_is():
    vector = numbers(1000)
    before = vector.clone()
    assert shrinkage(vector, 1e3, ALONE) == 1.0
    clip_(vector, 1e3, ALONE)
    assert torch.equal(vector, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_clipped_to_zero(value):
    vector = torch.ones(40_000)
    vector[20_000] = value
    assert shrinkage(vector, 1e9, ALONE) == 0.0
    clip_(vector, 1e9, ALONE)
    assert not vector.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_move_is_the_exact_one_up_to_three_roundings(dtype):
    position, gradient = numbers(300, 1), numbers(300, 2, dtype)
    start = position.clone()
    contraction, rate = math.nextafter(1.0, 0.0), 0.1
    move_(position, gradient, contraction=contraction, rate=rate)
    for found, before, slope in zip(position, start, gradient, strict=True):
        kept = Fraction(contraction) * Fraction(float(before))
        exact = kept - Fraction(rate) * Fraction(float(slope))
        largest = max(abs(kept), abs(exact), abs(kept - exact))
        assert abs(Fraction(float(found)) - exact) <= 3 * largest / 2**53


def test_a_rate_of_zero_leaves_the_gradient_unread():
    position = numbers(10)
    expected = 0.5 * position
    move_(position, torch.full((10,), math.nan), contraction=0.5, rate=0.0)
    assert torch.equal(position, expected)


def test_a_position_of_float32_is_refused():
    with pytest.raises(ValueError, match="float64"):
        move_(torch.ones(3), torch.ones(3), contraction=0.5, rate=0.1)

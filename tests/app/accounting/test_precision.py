import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from app.accounting.precision import (
    cell_diagonal,
    grid_of,
    noise_norm,
    sampling_residue,
)
from app.domain.errors import ParameterError

GOOD = {"dimension": 100, "draws": 3, "reach": 5.0, "noise_std": 0.1}


@given(st.floats(1e-140, 1e140))
def test_the_grid_is_a_power_of_two_just_above_its_share_of_the_noise(noise_std):
    grid = grid_of(noise_std)
    assert math.frexp(grid)[0] == 0.5
    assert noise_std * 2.0**-20 <= grid < noise_std * 2.0**-19


def test_noise_of_a_power_of_two_has_exactly_its_share():
    for exponent in (-30, -1, 0, 7):
        assert grid_of(2.0**exponent) == 2.0 ** (exponent - 20)


@pytest.mark.parametrize("noise_std", [0.0, -1.0, math.nan, math.inf, 1e-150])
def test_there_is_no_grid_without_noise(noise_std):
    with pytest.raises(ParameterError):
        grid_of(noise_std)


def test_rounding_to_the_grid_moves_by_half_a_diagonal_at_most():
    points = np.random.default_rng(1).standard_normal((1000, 30))
    rounded = np.round(points / grid_of(0.3)) * grid_of(0.3)
    furthest = np.linalg.norm(points - rounded, axis=1).max()
    assert furthest <= cell_diagonal(dimension=30, noise_std=0.3) / 2
    assert cell_diagonal(dimension=4, noise_std=0.3) == pytest.approx(2 * grid_of(0.3))


def test_noise_is_longer_than_its_norm_less_than_once_in_two_to_the_58():
    for dimension in (1, 10, 10_000):
        bound = noise_norm(dimension=dimension, noise_std=2.0) / 2
        assert bound == pytest.approx(math.sqrt(dimension) + 9)
        assert chi2.sf(bound**2, dimension) < 2.0**-58


def test_the_residue_of_one_number_is_that_of_the_proof():
    found = sampling_residue(dimension=100, draws=9, reach=5.0, noise_std=0.1)
    assert found.mu == pytest.approx(3 * (2.2e-7 * 10 + 6e-10 * 50), rel=1e-9)


@pytest.mark.parametrize("name", ["dimension", "draws", "reach"])
def test_the_residue_grows_with_everything_but_the_noise(name):
    more = sampling_residue(**{**GOOD, name: GOOD[name] * 2})
    assert more.mu > sampling_residue(**GOOD).mu
    assert more.delta >= sampling_residue(**GOOD).delta
    louder = sampling_residue(**{**GOOD, "noise_std": 0.2})
    assert louder.mu < sampling_residue(**GOOD).mu


def test_the_residue_is_small_where_guarantees_are_useful():
    """A head of ten thousand weights and a thousand noisy steps."""
    found = sampling_residue(dimension=10_000, draws=1000, reach=50.0, noise_std=0.01)
    assert found.mu < 1e-3
    assert found.delta < 1e-7


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("dimension", 0),
        ("reach", -1.0),
        ("reach", math.nan),
        ("noise_std", 0.0),
        ("noise_std", 1e-8),
    ],
)
def test_refuses_noise_that_float64_cannot_add_and_other_nonsense(name, bad):
    with pytest.raises(ParameterError) as caught:
        sampling_residue(**{**GOOD, name: bad})
    assert caught.value.name == name

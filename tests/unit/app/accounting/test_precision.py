"""The grid, and what is left of the ideal: the constants of docs/guarantees.md, section 11."""

import math

import numpy as np
import pytest
from scipy.special import i0e
from scipy.stats import norm

from app.accounting import gaussian
from app.accounting.precision import (
    cell_diagonal,
    grid_of,
    noise_norm,
    sampling_residue,
)
from app.domain.errors import ParameterError

UNIT = 2.0**-53
SIDE = 2.0**-20
COARSE = 35


def test_the_grid_is_a_power_of_two_near_a_millionth_of_the_noise():
    for noise_std in (1.0, 0.3, 5e-5, 1024.0, math.nextafter(2.0, 1.0), math.nextafter(2.0, 3.0)):
        grid = grid_of(noise_std)
        assert math.frexp(grid)[0] == 0.5
        assert 2.0**-20 * noise_std <= grid < 2.0**-19 * noise_std
    assert grid_of(1.0) == 2.0**-20


def test_a_cell_is_as_long_as_its_diagonal():
    assert cell_diagonal(dimension=16, noise_std=1.0) == pytest.approx(2.0**-18)


def test_a_residue_composes_over_draws():
    one = sampling_residue(dimension=100, draws=1, reach=5.0, noise_std=0.5)
    many = sampling_residue(dimension=100, draws=16, reach=5.0, noise_std=0.5)
    assert many.mu == pytest.approx(4 * one.mu)
    assert many.delta == pytest.approx(16 * one.delta)


def test_noise_in_the_last_digits_is_refused():
    sampling_residue(dimension=1, draws=1, reach=2.0**26, noise_std=1.0)
    for bad in (math.nan, math.inf, 2.0**26 * 1.001):
        with pytest.raises(ParameterError):
            sampling_residue(dimension=1, draws=1, reach=bad, noise_std=1.0)


def error_in_a_number(pair_norm):
    """Section 11.3: the expected error of a coordinate, given the pair, both draws fine."""
    centre = pair_norm / math.sqrt(2)
    radius = np.linspace(1e-7, 14, 400_001)
    density = 2 * radius * np.exp(-((radius - centre) ** 2)) * i0e(2 * radius * centre)
    rounding = UNIT * (17 * radius + 2 / radius)
    fine = radius <= math.sqrt(2 * COARSE * math.log(2))
    cell = np.where(fine, 2.0**-75 * np.exp(np.minimum(radius**2 / 2, 60)) / radius, 0)
    return math.sqrt(2) * float(np.trapezoid(density * (rounding + cell), radius))


def test_the_constant_for_cells_is_what_the_sampler_may_be_off():
    worst = max(4 * error_in_a_number(pair_norm) / SIDE for pair_norm in np.linspace(0, 9, 19))
    assert worst <= 2.0**-22.8
    as_mu = 2 * norm.ppf(math.exp(2.0**-22) / (1 + math.exp(2.0**-22)))
    residue = sampling_residue(dimension=10**6, draws=1, reach=0.0, noise_std=1.0)
    assert as_mu * math.sqrt(10**6 / 2) <= residue.mu <= 1.1 * as_mu * math.sqrt(10**6 / 2)


def test_the_constant_for_total_variation_is_what_coarse_draws_leave():
    error = UNIT * (17 * 10.2 + 17 * 1.26 + 2 * 1.26) / math.sqrt(2)
    one_coarse = 2 * 2.0**-COARSE * 8 * error / SIDE
    both_coarse = 2.0 ** (-2 * COARSE)
    beyond = 2 * math.exp(-(9.0**2) / 2)
    a_pair = one_coarse + both_coarse + beyond + 2.0**-72
    residue = sampling_residue(dimension=2 * 10**6, draws=1, reach=0.0, noise_std=1.0)
    assert a_pair * 10**6 <= residue.delta <= 4 * a_pair * 10**6


def test_the_constant_for_reach_is_what_the_addition_may_be_off():
    shift = 2 * UNIT / SIDE  # of a cell's edge, relative to its side, per unit of reach
    as_mu = math.sqrt(math.pi / 2) * shift * math.sqrt(2)
    one = sampling_residue(dimension=1, draws=1, reach=0.0, noise_std=1.0)
    far = sampling_residue(dimension=1, draws=1, reach=1000.0, noise_std=1.0)
    assert as_mu * 1000 <= far.mu - one.mu <= 2 * as_mu * 1000


def test_norms_stay_within_their_bound_for_computed_numbers_too():
    allowed = 2.0**-58
    for moved in (0.0, 0.5, 0.9):
        beyond = norm.cdf(norm.ppf(math.exp(-50.0)) + moved)
        assert beyond <= allowed
    assert noise_norm(dimension=100, noise_std=2.0) == 40.0


def test_two_residues_add_up():
    # Lemma 7: no test of N(0, 1) against N(a + b, 1) beats the sum of two shifts.
    alphas = np.linspace(1e-6, 1 - 1e-6, 1001)
    through = norm.cdf(norm.ppf(alphas) + 0.3)
    assert np.allclose(norm.cdf(norm.ppf(1 - through) - 0.2), norm.cdf(norm.ppf(1 - alphas) - 0.5))


def test_a_bounded_ratio_is_a_gaussian_shift():
    # Lemma 8: at every epsilon, randomised response with the ratio e^xi is below the Gaussian.
    for ratio in (1e-3, 0.1, 1.0):
        mu = 2 * norm.ppf(math.exp(ratio) / (1 + math.exp(ratio)))
        if ratio == 1e-3:
            assert mu <= 1.2534 * ratio
        for epsilon in np.linspace(0, ratio, 11)[:-1]:
            response = (math.exp(ratio) - math.exp(epsilon)) / (1 + math.exp(ratio))
            assert response <= gaussian.delta_of(mu=mu, epsilon=float(epsilon)) * (1 + 1e-9)


def test_cells_of_a_small_sampler_are_as_likely_as_stated():
    # 6 bits of radius and of angle: all sums of two draws, on cells of side 1/2.
    bits, side, shift = 6, 0.5, np.array([0.137, 0.291])
    uniform = (np.arange(2**bits) + 0.5) / 2**bits
    radius = np.sqrt(-np.log(uniform))[:, None]
    angle = 2 * math.pi * np.arange(2**bits) / 2**bits
    draws = np.stack([(radius * np.cos(angle)).ravel(), (radius * np.sin(angle)).ravel()])
    size = 32
    counts = np.zeros(size * size, dtype=np.int64)
    for one in draws.T:
        where = np.floor((draws + one[:, None]) / side + shift[:, None]).astype(int) + size // 2
        counts += np.bincount(where[0] * size + where[1], minlength=size * size)
    computed = counts.reshape(size, size) / draws.shape[1] ** 2
    edges = [(np.arange(size + 1) - size // 2 - moved) * side for moved in shift]
    ideal = np.outer(*(np.diff(norm.cdf(each)) for each in edges))
    middles = [(each[1:] + each[:-1]) / 2 for each in edges]
    norms = np.hypot(middles[0][:, None], middles[1])
    for low, high in ((0.0, 1.0), (1.0, 2.0), (2.0, 2.5)):
        chosen = (norms >= low) & (norms < high)
        off = np.abs(computed[chosen] / ideal[chosen] - 1).max()
        assert off <= 4 * small_error(low, bits) / side


def small_error(pair_norm, bits):
    """The expected error of a coordinate for a sampler of few bits, by its coupling alone."""
    centre = pair_norm / math.sqrt(2)
    radius = np.linspace(1e-5, 7, 20_001)
    density = 2 * radius * np.exp(-((radius - centre) ** 2)) * i0e(2 * radius * centre)
    cell = np.minimum(np.floor(np.exp(-(radius**2) / 2) * 2**bits), 2**bits - 1)
    in_radius = np.abs(np.sqrt(-2 * np.log((cell + 0.5) / 2**bits)) - radius)
    error = np.hypot(in_radius, radius * math.pi / 2**bits)
    return math.sqrt(2) * float(np.trapezoid(density * error, radius))

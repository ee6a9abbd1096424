import math

import pytest

from app.accounting.chains.computed_chain import chain_residue, with_rounding
from app.accounting.chains.noisy_step import NoisyStep
from app.accounting.precision import cell_diagonal, noise_norm, sampling_residue
from app.domain.errors import ParameterError


def test_a_step_from_a_grid_point_is_shifted_by_a_cell():
    step = NoisyStep(0.5, 0.2, 0.3)
    moved = with_rounding(step, after_noise_std=8.0, dimension=100).shift - 0.2
    cell = cell_diagonal(dimension=100, noise_std=8.0)
    assert cell == pytest.approx(10 * 8 * 2.0**-20)
    assert 0.5 * cell < moved <= 0.5 * cell + 0.3 * 2.0**-23


def test_the_reach_of_a_run_is_its_furthest_point_and_its_largest_noise():
    far = NoisyStep(1.0, 2.0, 0.1)
    back = NoisyStep(0.01, 0.0, 0.1)
    found = chain_residue(start_norm=1.0, run=((far, 50), (back, 10)), dimension=9)
    reach = 1.0 + 50.0 + noise_norm(dimension=9, noise_std=0.1 * math.sqrt(50))
    expected = sampling_residue(dimension=9, draws=60, reach=reach, noise_std=0.1)
    assert found.mu == pytest.approx(expected.mu, rel=1e-8)
    assert found.mu >= expected.mu
    assert found.delta == expected.delta


def test_the_smallest_noise_of_a_run_counts():
    quiet, loud = NoisyStep(0.5, 0.1, 0.01), NoisyStep(0.5, 0.1, 1.0)
    mixed = chain_residue(start_norm=1.0, run=((loud, 1), (quiet, 1)), dimension=4)
    alone = chain_residue(start_norm=1.0, run=((loud, 2),), dimension=4)
    assert mixed.mu > alone.mu


def test_noise_in_the_last_digits_of_a_position_is_refused():
    step = NoisyStep(1.0, 0.0, 1e-9)
    with pytest.raises(ParameterError) as caught:
        chain_residue(start_norm=1.0, run=((step, 1),), dimension=1)
    assert caught.value.name == "noise_std"

"""DP-SGD by our step and by Opacus: the same plan, and, but for noise, the same step."""

from dataclasses import replace

import pytest
import torch

from benchmarks import ensembles_cases
from benchmarks.private_training import by_opacus, plan_of, privately


@pytest.fixture(scope="module")
def case():
    return ensembles_cases.digits(public=True)


def test_a_larger_group_and_a_smaller_epsilon_need_more_noise(case):
    (recipe, one), (_, ten) = plan_of(case, 1, epsilon=4), plan_of(case, 10, epsilon=4)
    stricter = plan_of(case, 1, epsilon=1)[1]
    assert one.noise_multiplier < stricter.noise_multiplier < ten.noise_multiplier
    assert recipe.batch_size == pytest.approx(one.sampling_rate * len(case.train), abs=1)


def test_opacus_takes_the_step_that_ours_takes(case):
    pytest.importorskip("opacus")
    recipe, private = plan_of(case, 1, epsilon=8)
    exact = replace(private, noise_multiplier=1e-9, sampling_rate=1.0, steps=2)
    recipe = replace(recipe, batch_size=len(case.train))
    case = replace(case, public=case.trained().module.state_dict())
    ours, theirs = (train(case, (recipe, exact))[0] for train in (privately, by_opacus))
    start = torch.cat([each.flatten() for each in case.start().parameters()])
    moved = ours.flat.values.float() - start
    assert moved.norm() > 1e-3
    assert torch.allclose(
        theirs.flat.values.float() - start, moved, atol=1e-4 * float(moved.norm())
    )

"""Noise is added once, and no copy of it is left."""

import pytest
import torch

from workers.mechanisms.vectors import add_noise_
from workers.noise import InsecureNoise


class Failing:
    name = "fails half way"

    def normal_(self, out):
        out.fill_(3.0)
        raise RuntimeError


def test_noise_is_added_and_its_copy_overwritten():
    position, scratch, drawn = torch.ones(1000), torch.ones(1000), torch.empty(1000)
    add_noise_(position, 0.5, InsecureNoise(1, environment="test"), scratch=scratch)
    InsecureNoise(1, environment="test").normal_(drawn)
    assert torch.equal(position, 1 + 0.5 * drawn)
    assert not scratch.any()


def test_the_copy_is_overwritten_after_a_failure_too():
    position, scratch = torch.ones(10), torch.ones(10)
    with pytest.raises(RuntimeError):
        add_noise_(position, 0.5, Failing(), scratch=scratch)
    assert not scratch.any()

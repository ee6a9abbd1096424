"""Noise: distribution, independence between instances, and refusals."""

import copy
import os
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from app.domain.errors import ConfigurationError, SealedStateError
from workers.noise import InsecureNoise, SecureNoise

DRAWS = 1_000_003  # odd, and not a multiple of the chunk


@pytest.fixture(scope="module")
def draws():
    out = torch.empty(DRAWS, dtype=torch.float64)
    SecureNoise().normal_(out)
    return out.numpy()


# The statistical tests below fail by chance with probability below 1e-8 each.


def test_moments_are_those_of_a_standard_normal(draws):
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0), (6, 15.0)):
        samples = draws**power
        assert abs(samples.mean() - moment) < 6 * samples.std() / DRAWS**0.5


def test_distribution_passes_kolmogorov_smirnov(draws):
    assert stats.kstest(draws, "norm").pvalue > 1e-8


def test_tails_hold_as_much_as_they_should(draws):
    for threshold in (3.0, 4.0):
        for tail in (draws > threshold, draws < -threshold):
            expected = stats.norm.sf(threshold)
            assert stats.binomtest(int(tail.sum()), DRAWS, expected).pvalue > 1e-8


def test_the_two_numbers_of_a_pair_are_independent(draws):
    half = 1 << 16
    cosines, sines = draws[:half], draws[half : 2 * half]
    for first, second in ((cosines, sines), (cosines**2, sines**2), (draws[:-1], draws[1:])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 6 / len(first) ** 0.5


def test_numbers_never_repeat_within_or_between_instances(draws):
    other = torch.empty(DRAWS, dtype=torch.float64)
    SecureNoise().normal_(other)
    both = np.concatenate([draws, other.numpy()])
    assert len(np.unique(both)) > 2 * DRAWS - 10


def test_consecutive_calls_continue_the_stream():
    noise = SecureNoise()
    first, second = torch.empty(100), torch.empty(100)
    noise.normal_(first)
    noise.normal_(second)
    assert not torch.isin(first, second).any()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fills_any_size_entirely(size, dtype):
    out = torch.full((size,), torch.nan, dtype=dtype)
    SecureNoise().normal_(out)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("out", [torch.empty(2, 2), torch.empty(2, dtype=torch.int64)])
def test_refuses_other_tensors(out):
    for noise in (SecureNoise(), InsecureNoise(0, environment="test")):
        with pytest.raises(ValueError, match="1-D"):
            noise.normal_(out)


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_secure_noise_cannot_be_copied(attempt):
    with pytest.raises(SealedStateError):
        attempt(SecureNoise())


def test_secure_noise_prints_no_state():
    noise = SecureNoise()
    assert repr(noise) == str(noise) == "<SecureNoise: aes-256-ctr, box-muller float64>"
    assert not hasattr(noise, "__dict__")


def test_destroyed_noise_is_overwritten_and_unusable():
    noise = SecureNoise()
    noise.normal_(torch.empty(100))
    assert any(noise._words)
    noise.destroy()
    noise.destroy()
    assert not any(noise._words)
    with pytest.raises(SealedStateError):
        noise.normal_(torch.empty(1))


def test_noise_refuses_a_forked_child():
    noise = SecureNoise()
    child = os.fork()
    if child == 0:
        try:
            noise.normal_(torch.empty(1))
        except SealedStateError:
            os._exit(42)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_secure_noise_ignores_torchs_seed():
    first, second = torch.empty(10), torch.empty(10)
    for out in (first, second):
        torch.manual_seed(0)
        SecureNoise().normal_(out)
    assert not torch.equal(first, second)


def test_insecure_noise_repeats_and_refuses_production():
    first, second = torch.empty(10), torch.empty(10, dtype=torch.float64)
    InsecureNoise(3, environment="test").normal_(first)
    InsecureNoise(3, environment="development").normal_(second)
    assert torch.equal(first, second.float())
    for spelling in ("production", "Production", " production "):
        with pytest.raises(ConfigurationError):
            InsecureNoise(3, environment=spelling)

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
    half = 8064
    chunks = draws[: len(draws) // (2 * half) * 2 * half].reshape(-1, 2, half)
    cosines, sines = chunks[:, 0].ravel(), chunks[:, 1].ravel()
    for first, second in ((cosines, sines), (cosines**2, sines**2), (draws[:-1], draws[1:])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 6 / len(first) ** 0.5


def test_numbers_never_repeat_within_or_between_instances(draws):
    other = torch.empty(DRAWS, dtype=torch.float64)
    SecureNoise().normal_(other)
    both = np.concatenate([draws, other.numpy()])
    assert len(np.unique(both)) > 2 * DRAWS - 10


def test_consecutive_calls_continue_the_stream():
    noise = SecureNoise()
    first, second = torch.empty(2, 100, dtype=torch.float64)
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
    assert repr(noise) == str(noise) == "<SecureNoise: aes-256-ctr, box-muller float64, sum of 2>"
    assert not hasattr(noise, "__dict__")


def test_destroyed_noise_is_overwritten_and_unusable():
    noise = SecureNoise()
    noise.normal_(torch.empty(100))
    (maker,) = noise._makers.values()
    buffers = (maker._words, maker._uniform, maker._cosine)
    assert all(bool(buffer.any()) for buffer in buffers)
    noise.destroy()
    noise.destroy()
    assert not any(bool(buffer.any()) for buffer in buffers)
    assert maker._stream._cipher is None
    with pytest.raises(SealedStateError):
        noise.normal_(torch.empty(1))


def test_every_source_takes_a_fresh_key_from_the_operating_system(monkeypatch):
    taken = []

    def urandom(size):
        taken.append(size)
        return b"k" * size

    monkeypatch.setattr(os, "urandom", urandom)
    same = [torch.empty(10), torch.empty(10)]
    for out in same:
        SecureNoise().normal_(out)
    assert taken == [32, 32]
    assert torch.equal(*same)  # with one key, one stream: nothing else goes into it


def test_exceeds_five_standard_deviations_as_often_as_it_should():
    noise, out = SecureNoise(), torch.empty(1 << 20)
    rounds, beyond = 24, [0, 0]
    for _ in range(rounds):
        noise.normal_(out)
        for side in (0, 1):
            beyond[side] += int((out.abs() > (4.5, 5.0)[side]).sum())
    for threshold, found in zip((4.5, 5.0), beyond, strict=True):
        expected = 2 * stats.norm.sf(threshold)
        assert stats.binomtest(found, rounds * out.numel(), expected).pvalue > 1e-8


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_gets_the_same_distribution_from_page_locked_blocks():
    noise = SecureNoise()
    out = torch.empty(5_000_001, device="cuda")
    noise.normal_(out)
    (maker,) = noise._makers.values()
    assert all(block.words.is_pinned() for block in maker._stream._blocks)
    draws = out.cpu().numpy()
    assert stats.kstest(draws, "norm").pvalue > 1e-8
    again = torch.empty_like(out)
    noise.normal_(again)
    assert len(np.unique(np.concatenate([draws[:1000], again[:1000].cpu().numpy()]))) > 1990
    noise.destroy()
    assert not any(bool(block.words.any()) for block in maker._stream._blocks)
    assert not any(bool(b.any()) for b in (maker._words, maker._uniform, maker._cosine))

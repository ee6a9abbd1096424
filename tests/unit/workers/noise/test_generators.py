"""Noise: distribution, the public grid, the count, independence between instances, refusals."""

import copy
import os
import pickle
import sys

import numpy as np
import pytest
import torch
from scipy import stats

from app.accounting.precision import grid_of
from app.domain.errors import ConfigurationError, ParameterError, SealedStateError
from app.evidence.certificates.schema import NOISE_GENERATORS, ON_DEVICE_NOISE, SECURE_NOISE
from tests.support.insecure_noise import InsecureNoise
from workers.noise.generators import SecureNoise

DRAWS = 1_000_003  # odd, and not a multiple of the chunk
BOTH = (SecureNoise, lambda: InsecureNoise(0, environment="test"))


def zeros(size):
    return torch.zeros(size, dtype=torch.float64)


def drawn_by(noise, size):
    """Standard normal numbers, on their grid of 2^-20."""
    out = zeros(size)
    noise.add_(out, 1.0)
    return out


@pytest.fixture(scope="module")
def draws():
    return drawn_by(SecureNoise(), DRAWS).numpy()


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
    half = 16128
    chunks = draws[: len(draws) // (2 * half) * 2 * half].reshape(-1, 2, half)
    cosines, sines = chunks[:, 0].ravel(), chunks[:, 1].ravel()
    for first, second in ((cosines, sines), (cosines**2, sines**2), (draws[:-1], draws[1:])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 6 / len(first) ** 0.5


def test_numbers_differ_between_instances(draws):
    """Two numbers share a cell of the grid with chance 2^-20 / (2 sqrt(pi))."""
    other = drawn_by(SecureNoise(), DRAWS).numpy()
    assert (draws == other).sum() < 12
    assert abs(np.corrcoef(draws, other)[0, 1]) < 6 / DRAWS**0.5


def test_consecutive_calls_continue_the_stream():
    noise = SecureNoise()
    first, second = drawn_by(noise, 1000), drawn_by(noise, 1000)
    assert (first == second).sum() < 5


@pytest.mark.parametrize("noise_std", [1e-9, 0.3, 2.0, 1e9])
def test_a_sum_is_a_point_of_the_public_grid_and_off_by_noise_of_that_deviation(noise_std):
    start = noise_std * torch.linspace(-50, 50, 100_000, dtype=torch.float64)
    for make in BOTH:
        position = start.clone()
        make().add_(position, noise_std)
        assert (position / grid_of(noise_std)).frac().eq(0).all()
        scaled = ((position - start) / noise_std).numpy()
        assert stats.kstest(scaled, "norm").pvalue > 1e-8


def test_numbers_are_counted_by_their_deviation_where_they_are_drawn():
    for make in BOTH:
        noise = make()
        assert noise.drawn == {}
        for size, noise_std in ((10, 0.5), (7, 2.0), (3, 0.5), (0, 2.0)):
            noise.add_(zeros(size), noise_std)
        assert noise.drawn == {0.5: 13, 2.0: 7}


def test_the_count_cannot_be_raised_from_outside_and_survives_destruction():
    noise = SecureNoise()
    noise.add_(zeros(5), 1.0)
    noise.drawn[1.0] = 100
    noise.destroy()
    assert noise.drawn == {1.0: 5}


def test_what_fails_is_not_counted():
    noise = SecureNoise()
    noise.add_(zeros(4), 1.0)
    maker = noise._maker
    maker.destroy()
    with pytest.raises(SealedStateError):
        noise.add_(zeros(5), 1.0)
    assert noise.drawn == {1.0: 4}


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7])
def test_adds_to_any_size_entirely(size):
    assert drawn_by(SecureNoise(), size).ne(0).all()


def test_adds_to_a_part_of_a_tensor_and_to_no_more():
    whole = zeros(30)
    SecureNoise().add_(whole[10:20], 1.0)
    assert whole.ne(0).tolist() == [False] * 10 + [True] * 10 + [False] * 10


@pytest.mark.parametrize(
    "position", [torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2), zeros(2).long()]
)
def test_refuses_other_tensors(position):
    for make in BOTH:
        with pytest.raises(ValueError, match="1-D float64"):
            make().add_(position, 1.0)
    assert not position.any()


@pytest.mark.parametrize("noise_std", [0.0, -1.0, float("nan"), float("inf"), 1e-300])
def test_refuses_what_is_no_deviation(noise_std):
    for make in BOTH:
        position, noise = zeros(3), make()
        with pytest.raises(ParameterError, match="noise_std"):
            noise.add_(position, noise_std)
        assert not position.any()
        assert noise.drawn == {}


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_secure_noise_cannot_be_copied(attempt):
    with pytest.raises(SealedStateError):
        attempt(SecureNoise())


def test_secure_noise_prints_no_state():
    noise = SecureNoise()
    assert (
        repr(noise)
        == str(noise)
        == ("<SecureNoise: aes-256-ctr, box-muller float64, 74-bit radius, sum of 2>")
    )
    assert not hasattr(noise, "__dict__")


def test_destroyed_noise_is_overwritten_and_unusable():
    noise = SecureNoise()
    noise.add_(zeros(100), 1.0)
    maker = noise._maker
    buffers = (maker._block.words, maker._block.scratches)
    assert all(bool(buffer.any()) for buffer in buffers)
    noise.destroy()
    noise.destroy()
    assert not any(bool(buffer.any()) for buffer in buffers)
    assert maker._stream._cipher is None
    with pytest.raises(SealedStateError):
        noise.add_(zeros(1), 1.0)


def test_every_source_takes_a_fresh_key_from_the_operating_system(monkeypatch):
    taken = []

    def urandom(size):
        taken.append(size)
        return b"k" * size

    monkeypatch.setattr(os, "urandom", urandom)
    same = [drawn_by(SecureNoise(), 10) for _ in range(2)]
    assert taken == [32, 32]
    assert torch.equal(*same)  # with one key, one stream: nothing else goes into it


@pytest.mark.slow
def test_exceeds_five_standard_deviations_as_often_as_it_should():
    noise, rounds, beyond = SecureNoise(), 24, [0, 0]
    for _ in range(rounds):
        out = drawn_by(noise, 1 << 20)
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
            noise.add_(zeros(1), 1.0)
        except SealedStateError:
            os._exit(42)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_secure_noise_ignores_torchs_seed():
    numbers = []
    for _ in range(2):
        torch.manual_seed(0)
        numbers.append(drawn_by(SecureNoise(), 10))
    assert not torch.equal(*numbers)


def test_insecure_noise_repeats_and_refuses_production():
    first = drawn_by(InsecureNoise(3, environment="test"), 10)
    second = drawn_by(InsecureNoise(3, environment="development"), 10)
    assert torch.equal(first, second)
    for spelling in ("production", "Production", " production "):
        with pytest.raises(ConfigurationError):
            InsecureNoise(3, environment=spelling)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_without_triton_a_device_gets_the_same_distribution_from_a_page_locked_block(monkeypatch):
    monkeypatch.setitem(sys.modules, "workers.noise.device_key_stream", None)
    noise = SecureNoise(torch.device("cuda"))
    assert noise.name == SECURE_NOISE
    out = torch.zeros(5_000_001, device="cuda", dtype=torch.float64)
    noise.add_(out, 1.0)
    assert (out / grid_of(1.0)).frac().eq(0).all()
    maker = noise._maker
    assert maker._stream._block.is_pinned()
    draws = out.cpu().numpy()
    assert stats.kstest(draws, "norm").pvalue > 1e-8
    again = torch.zeros_like(out)
    noise.add_(again, 1.0)
    assert int((out == again).sum()) < 30
    noise.destroy()
    assert not bool(maker._stream._block.any())
    assert not any(bool(b.any()) for b in (maker._block.words, maker._block.scratches))


def test_the_names_that_a_verifier_knows_are_those_of_what_the_workers_use() -> None:
    name = SecureNoise().name
    assert name == SECURE_NOISE
    assert name.partition(", ")[2] == ON_DEVICE_NOISE.partition(", ")[2]
    assert {name, ON_DEVICE_NOISE} == NOISE_GENERATORS
    assert InsecureNoise.name not in NOISE_GENERATORS

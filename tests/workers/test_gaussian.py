"""The transform from words to normal numbers: exact, independent, and with all of its tails."""

import numpy as np
import pytest
import torch
from scipy import stats

from workers.gaussian import Gaussians, normal_pairs_
from workers.key_stream import AesKeyStream, fresh_key

CPU = torch.device("cpu")
TOP = 1 << 53


def words_of(uniforms):
    """Words whose upper 53 bits are the whole numbers given, the others ones."""
    k = np.asarray(uniforms, dtype=np.uint64)
    return torch.from_numpy(((k << np.uint64(11)) | np.uint64(2047)).view(np.int64).ravel().copy())


def transformed(radii, angles):
    """Numbers from chosen k: arrays [2 draws, n] of whole numbers below 2^53."""
    # The upper bits of a word are read as a signed number, which moves k by half of the range.
    shifted = [(np.asarray(k, dtype=np.uint64) + TOP // 2) % TOP for k in (radii, angles)]
    words = torch.cat([words_of(k) for k in shifted])
    first, second = normal_pairs_(
        words,
        torch.empty(words.numel(), dtype=torch.float64),
        torch.empty(words.numel() // 2, dtype=torch.float64),
    )
    return first.numpy(), second.numpy()


def reference(radii, angles):
    u = (np.asarray(radii, dtype=np.longdouble) + 1) / TOP
    r = np.sqrt(-2 * np.log(u))
    theta = 2 * np.pi * (np.asarray(angles, dtype=np.longdouble) - TOP // 2) / TOP
    scale = np.sqrt(np.longdouble(2))
    return (r * np.cos(theta)).sum(0) / scale, (r * np.sin(theta)).sum(0) / scale


def uniform_k(count):
    words = torch.empty(count, dtype=torch.int64)
    AesKeyStream(fresh_key()).fill_(words)
    return words.numpy().view(np.uint64) >> np.uint64(11)


def test_agrees_with_the_formula_for_chosen_words():
    radii = uniform_k(2000).reshape(2, -1)
    radii[0, :4] = [0, 1, TOP - 1, TOP - 2]
    angles = uniform_k(2000).reshape(2, -1)
    angles[1, :3] = [0, TOP - 1, TOP // 2]
    for ours, exact in zip(transformed(radii, angles), reference(radii, angles), strict=True):
        assert np.abs(ours - exact.astype(float)).max() < 1e-14


def test_every_word_gives_a_finite_number_and_the_farthest_is_at_12_12():
    radii, angles = [[0, TOP - 1], [0, TOP - 1]], [[TOP // 2] * 2] * 2
    first, second = transformed(radii, angles)
    assert first == pytest.approx([np.sqrt(2 * 2 * 53 * np.log(2)), 0.0], rel=1e-14)
    assert second == pytest.approx([0.0, 0.0])


def share_beyond(thresholds, *, bits, tilt=16.0, pairs=1 << 20):
    """Estimate P(number > t) from words that favour the tails, each weighed by its likelihood.

    With U = V^a and V uniform, U has the density U^(1/a - 1) / a: dividing by it makes up for that.
    """
    v = (uniform_k(2 * pairs).reshape(2, -1) + 0.5) / TOP
    u = v**tilt
    weight = (tilt * u ** (1 - 1 / tilt)).prod(0)
    kept = 1 << (53 - bits)
    radii = np.floor(u * TOP).astype(np.uint64) // kept * kept + (kept - 1)
    first, second = transformed(radii, uniform_k(2 * pairs).reshape(2, -1))
    both = np.concatenate([first, second])
    return [float((np.tile(weight, 2) * (both > t)).mean()) for t in thresholds]


def test_exceeds_what_float32_never_does_at_the_right_rate():
    thresholds = (4.0, 5.77, 7.0, 8.5, 10.0)
    found = share_beyond(thresholds, bits=53)
    for threshold, share in zip(thresholds, found, strict=True):
        assert share == pytest.approx(stats.norm.sf(threshold), rel=0.1)


def test_uniforms_of_float32_would_cut_the_tail():
    """The estimate above sees what it should: with 24 bits nothing lies beyond 5.77 * sqrt(2)."""
    at_4, beyond = share_beyond((4.0, 8.5), bits=24)
    assert at_4 == pytest.approx(stats.norm.sf(4.0), rel=0.1)
    assert beyond == 0.0


def test_chunks_are_independent_and_uniform_in_rank():
    pairs = 1000
    out = torch.empty(400 * pairs, dtype=torch.float64)
    Gaussians(AesKeyStream(fresh_key()), CPU, pairs=pairs).fill_(out)
    chunks = out.numpy().reshape(200, 2 * pairs)
    correlation = np.corrcoef(chunks)
    off = correlation[~np.eye(len(chunks), dtype=bool)]
    assert np.abs(off).max() < 7 / (2 * pairs) ** 0.5
    cells = np.histogram(stats.norm.cdf(chunks.ravel()), bins=1000, range=(0, 1))[0]
    assert stats.chisquare(cells).pvalue > 1e-8


def test_is_rounded_once_to_float32():
    single, double = torch.empty(5001), torch.empty(5001, dtype=torch.float64)
    for out in (single, double):
        Gaussians(AesKeyStream(bytearray(b"a" * 32)), CPU, pairs=700).fill_(out)
    assert torch.equal(single, double.float())


def test_the_size_of_chunks_only_orders_the_numbers():
    numbers = []
    for pairs in (1, 3, 500):
        out = torch.empty(1000, dtype=torch.float64)
        Gaussians(AesKeyStream(bytearray(b"a" * 32)), CPU, pairs=pairs).fill_(out)
        numbers.append(out)
    assert all(bool(torch.isfinite(out).all()) for out in numbers)
    assert torch.equal(numbers[0][:2], reread(4))


def reread(count):
    """The first pair, from the first words of the stream."""
    words = torch.zeros(count, dtype=torch.int64)
    AesKeyStream(bytearray(b"a" * 32)).fill_(words)
    pair = normal_pairs_(
        words, torch.empty(count, dtype=torch.float64), torch.empty(2, dtype=torch.float64)
    )
    return torch.cat(pair)

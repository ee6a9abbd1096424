"""The transform from words to normal numbers: exact, independent, and with all of its tails."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from workers.noise import box_muller
from workers.noise.box_muller import Block, Gaussians, normal_pairs_, round_to_
from workers.noise.key_stream import AesKeyStream, fresh_key

CPU = torch.device("cpu")
TOP = 1 << 53
LARGEST = (1 << 63) - 1
UNIT = 2.0**-53
TORCHS = (torch.log, torch.sqrt)
FINE = 2.0**-60  # a grid that rounds away nothing

mpmath.mp.prec = 200


def block_of(words):
    return Block(words, torch.empty(words.numel(), dtype=torch.float64))


def transformed(radii, spares, angles, turns=0):
    """Numbers from chosen w, e, k and half turns: arrays [2 draws, n] of whole numbers.

    The upper bits of an angle word are read as a signed number, which moves k by half of the range.
    """
    radii, spares, angles = (np.asarray(k, dtype=np.uint64) for k in (radii, spares, angles))
    marked = radii | (np.broadcast_to(np.uint64(turns), radii.shape) << np.uint64(63))
    shifted = (angles + np.uint64(TOP // 2)) % np.uint64(TOP)
    words = np.concatenate([marked.ravel(), ((shifted << np.uint64(11)) | spares).ravel()])
    first, second = normal_pairs_(block_of(torch.from_numpy(words.view(np.int64).copy())))
    return first.numpy(), second.numpy()


def reference(radii, spares, angles, turns):
    """The same for one number, in many digits: both coordinates and the radii of both draws."""
    first = second = mpmath.mpf(0)
    distances = []
    for w, e, k, turn in zip(radii, spares, angles, turns, strict=True):
        u = (mpmath.mpf(int(w)) + (mpmath.mpf(int(e)) + 0.5) / 2048) / mpmath.mpf(2) ** 63
        r = mpmath.sqrt(-2 * mpmath.log(u))
        theta = mpmath.pi * (mpmath.mpf(int(k) - TOP // 2) / TOP + int(turn))
        first += r * mpmath.cos(theta)
        second += r * mpmath.sin(theta)
        distances.append(r)
    return first / mpmath.sqrt(2), second / mpmath.sqrt(2), distances


def uniform_words(count, bits):
    words = torch.empty(count, dtype=torch.int64)
    AesKeyStream(fresh_key()).fill_(words)
    return words.numpy().view(np.uint64) >> np.uint64(64 - bits)


def chosen_words():
    """Random words, and those at the ends of every range; every other draw has a half turn."""
    draws = 1000
    turns = np.arange(2 * draws, dtype=np.uint64).reshape(2, -1) % np.uint64(2)
    radii, spares, angles = (uniform_words(2 * draws, bits).reshape(2, -1) for bits in (63, 11, 53))
    edges = [
        0,
        1,
        2,
        2047,
        TOP - 1,
        TOP,
        TOP + 1,
        LARGEST // 2,
        LARGEST - 600,
        LARGEST - 1,
        LARGEST,
    ]
    radii[0, : len(edges)] = edges
    radii[1, 1 : len(edges) + 1] = edges
    radii[0, 100:163] = [(1 << bit) - 1 for bit in range(1, 64)]  # near 1, from below, and near 0
    radii[0, 200:262] = [LARGEST - (1 << bit) for bit in range(62)]
    spares[0, ::7], spares[1, ::5] = 0, 2047
    quarter = TOP // 4
    angles[1, :9] = [0, 1, TOP - 1, TOP // 2, TOP // 2 + 1, quarter, quarter + 1, 3 * quarter, 5]
    turns[1, :500] = 1
    return radii, spares, angles, turns


def test_numbers_are_within_the_bound_that_the_proof_uses():
    """e(R) = u (17 R + 2 / R) a draw, as in the docstring; what is typical is a tenth of it."""
    words = chosen_words()
    shares = []
    for number, found in enumerate(zip(*transformed(*words), strict=True)):
        first, second, distances = reference(*(part[:, number] for part in words))
        bound = sum(17 * r + 2 / r for r in distances) * UNIT / mpmath.sqrt(2)
        shares += [abs(found[0] - first) / bound, abs(found[1] - second) / bound]
    assert max(shares) <= 1
    assert np.median([float(share) for share in shares]) < 0.2


@pytest.mark.parametrize(
    ("compute", "exact", "low", "high"),
    [
        (np.log, mpmath.log, 2.0**-75, 1.0),
        (torch.log, mpmath.log, 2.0**-75, 1.0),
        (np.sqrt, mpmath.sqrt, 2.0**-54, 52.0),
        (torch.sqrt, mpmath.sqrt, 2.0**-54, 52.0),
    ],
    ids=["log", "torch.log", "sqrt", "torch.sqrt"],
)
def test_functions_are_as_exact_as_the_proof_assumes(compute, exact, low, high):
    """Within one unit in the last place."""
    draws = np.random.default_rng(1)
    numbers = draws.uniform(low, high, 4000)
    small = np.exp2(draws.uniform(-75, 0, 1000))
    numbers = np.concatenate([numbers, small, 1 - small, [high, low]])
    numbers = numbers[numbers >= low]
    found = np.asarray(compute(torch.from_numpy(numbers) if compute in TORCHS else numbers))
    for number, value in zip(numbers, found, strict=True):
        true = exact(mpmath.mpf(float(number)))
        assert abs(mpmath.mpf(float(value)) - true) <= math.ulp(float(true))


def test_polynomials_are_as_exact_as_the_proof_assumes():
    """Evaluated in many digits, they are within 2^-57 of sine over angle, and of cosine."""
    for x in [mpmath.pi / 4 * step / 1000 for step in range(1, 1001)]:
        sine = 1 + sum(mpmath.mpf(c) * x ** (2 * k) for k, c in enumerate(box_muller._SINE, 1))
        cosine = 1 + sum(mpmath.mpf(c) * x ** (2 * k) for k, c in enumerate(box_muller._COSINE, 1))
        assert abs(sine - mpmath.sin(x) / x) <= mpmath.mpf(2) ** -57
        assert abs(cosine - mpmath.cos(x)) <= mpmath.mpf(2) ** -57


def test_every_word_gives_a_finite_number_and_the_farthest_is_at_14_42():
    first, second = transformed(
        [[0, LARGEST], [0, LARGEST]], [[0, 2047], [0, 2047]], [[TOP // 2] * 2] * 2
    )
    assert first == pytest.approx([np.sqrt(2 * 2 * 75 * np.log(2)), 0.0], rel=1e-14)
    assert second == pytest.approx([0.0, 0.0])


def test_the_spare_bits_of_the_angle_refine_the_smallest_radii():
    spares = np.array([[0, 1, 2047], [0, 0, 0]])
    radii = np.array([[0, 0, 0], [LARGEST] * 3])
    first, _ = transformed(radii, spares, [[TOP // 2] * 3] * 2)
    expected = [np.sqrt(-np.log((e + 0.5) * 2.0**-74)) for e in spares[0]]
    assert first == pytest.approx(expected, rel=1e-14)


def share_beyond(thresholds, *, bits, tilt=16.0, pairs=1 << 20):
    """Estimate P(number > t) from words that favour the tails, each weighed by its likelihood.

    With U = V^a and V uniform, U has the density U^(1/a - 1) / a: dividing by it makes up for that.

    Returns:
        The estimates and their standard errors.
    """
    v = (uniform_words(2 * pairs, 53).reshape(2, -1) + 0.5) / TOP
    u = v**tilt
    weight = (tilt * u ** (1 - 1 / tilt)).prod(0)
    kept = 1 << (63 - bits)
    radii = np.minimum(np.floor(u * 2.0**63), LARGEST - 1023).astype(np.uint64) // kept * kept
    angles = uniform_words(2 * pairs, 53).reshape(2, -1)
    turns = uniform_words(2 * pairs, 1).reshape(2, -1)
    spares = np.full_like(radii, 1023)
    first, second = transformed(radii + np.uint64(kept - 1), spares, angles, turns)
    both = np.concatenate([first, second])
    weighed = [np.tile(weight, 2) * (both > t) for t in thresholds]
    # The two numbers of a pair share a weight: as if there were half as many.
    return [float(w.mean()) for w in weighed], [float(w.std() / np.sqrt(pairs)) for w in weighed]


def test_exceeds_what_float32_never_does_at_the_right_rate():
    thresholds = (4.0, 5.77, 7.0, 8.5)
    for threshold, share, error in zip(thresholds, *share_beyond(thresholds, bits=63), strict=True):
        expected = stats.norm.sf(threshold)
        assert error < 0.3 * expected
        assert abs(share - expected) < 7 * error


def test_uniforms_of_float32_would_cut_the_tail():
    """The estimate above sees what it should: with 24 bits nothing lies beyond 5.77 * sqrt(2)."""
    (at_4, beyond), _ = share_beyond((4.0, 8.5), bits=24)
    assert at_4 == pytest.approx(stats.norm.sf(4.0), rel=0.2)
    assert beyond == 0.0


def drawn(count, *, key=None, pairs):
    """Numbers as the maker adds them to nothing, on a grid that leaves them as they are."""
    out = torch.zeros(count, dtype=torch.float64)
    stream = AesKeyStream(fresh_key() if key is None else bytearray(key))
    Gaussians(stream, CPU, pairs=pairs).add_(out, 1.0, grid=FINE)
    return out


def test_chunks_are_independent_and_uniform_in_rank():
    pairs = 1000
    chunks = drawn(400 * pairs, pairs=pairs).numpy().reshape(200, 2 * pairs)
    correlation = np.corrcoef(chunks)
    off = correlation[~np.eye(len(chunks), dtype=bool)]
    assert np.abs(off).max() < 7 / (2 * pairs) ** 0.5
    cells = np.histogram(stats.norm.cdf(chunks.ravel()), bins=1000, range=(0, 1))[0]
    assert stats.chisquare(cells).pvalue > 1e-8


def test_the_sum_of_position_and_noise_is_rounded_once_to_the_grid():
    key, grid, count = b"a" * 32, 2.0**-22, 5001
    position = torch.linspace(-3, 3, count, dtype=torch.float64)
    noise = drawn(count, key=key, pairs=700)
    rounded = position.clone()
    Gaussians(AesKeyStream(bytearray(key)), CPU, pairs=700).add_(rounded, 0.3, grid=grid)
    assert (rounded / grid).frac().eq(0).all()
    assert ((rounded - (position + 0.3 * noise)).abs() <= grid / 2 * (1 + 1e-9)).all()


def test_rounding_goes_to_the_nearest_multiple_halves_to_even_and_leaves_no_signed_zero():
    numbers = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -0.2, 0.2, 7.75], dtype=torch.float64) / 8
    round_to_(numbers, 0.125)
    assert (numbers * 8).tolist() == [0, 2, 2, 0, -2, 0, 0, 8]
    assert not torch.signbit(numbers[numbers == 0]).any()


def test_rounding_reaches_the_grid_however_far_a_number_is():
    grid, draws = 2.0**-20, np.random.default_rng(1)
    for reach in (1.0, 2.0**20, 2.0**31, 2.0**33, 2.0**60):
        numbers = np.concatenate([draws.uniform(-reach, reach, 10_000), [reach, -reach]])
        rounded = torch.from_numpy(numbers.copy())
        round_to_(rounded, grid)
        assert np.array_equal(rounded.numpy(), np.rint(numbers / grid) * grid)


def test_the_size_of_chunks_only_orders_the_numbers():
    numbers = [drawn(1000, key=b"a" * 32, pairs=pairs) for pairs in (1, 3, 500)]
    assert all(bool(torch.isfinite(out).all()) for out in numbers)
    assert torch.equal(numbers[0][:2], reread(4))


def reread(count):
    """The first pair, from the first words of the stream."""
    words = torch.zeros(count, dtype=torch.int64)
    AesKeyStream(bytearray(b"a" * 32)).fill_(words)
    return torch.cat(normal_pairs_(block_of(words)))

"""Worst-case audits (MATH.md section 10): attack the recursions themselves.

Each audit simulates one-dimensional worlds at least 100 000 times, chooses a threshold on one half
of the draws, and on the other half bounds from below, with Clopper-Pearson limits, what any honest
guarantee must admit. Every bound fails with probability at most 1e-6; seeds are fixed.
"""

import math

import numpy as np
import pytest
from scipy.stats import beta, norm

from app.accounting import (
    adaptive,
    gaussian,
    gradient_clipping,
    model_clipping,
    noisy_gd_convex,
    output_perturbation,
    present_records,
    projected_noisy_sgd,
    reflection,
    tracked_release,
)
from app.accounting.noisy_chain import NoisyChain

DRAWS = 200_000
FAILURE = 1e-6


def upper(hits, draws):
    """The Clopper-Pearson upper limit of a probability."""
    return 1.0 if hits == draws else float(beta.ppf(1 - FAILURE / 2, hits + 1, draws - hits))


def rates(first, second):
    """Upper limits of both error rates of the best threshold, chosen on held-out draws."""
    half = len(first) // 2
    candidates = np.quantile(np.concatenate([first[:half], second[:half]]), np.linspace(0, 1, 201))
    errors = [np.mean(first[:half] <= t) + np.mean(second[:half] > t) for t in candidates]
    threshold = candidates[int(np.argmin(errors))]
    missed = upper(int(np.sum(first[half:] <= threshold)), len(first) - half)
    false = upper(int(np.sum(second[half:] > threshold)), len(second) - half)
    return missed, false


def mu_lower_bound(first, second):
    """A lower bound on the mu of the pair of worlds, whatever they are."""
    missed, false = rates(first, second)
    return float(norm.ppf(1 - false) - norm.ppf(missed))


def clipped_walk(start, *, contraction, push, noise_stds, generator):
    """x <- contraction x + push sign(x) + noise: one map for both worlds, as bad as allowed."""
    x = np.full(DRAWS, float(start))
    for noise_std in noise_stds:
        x = contraction * x + push * np.sign(x) + noise_std * generator.standard_normal(DRAWS)
    return x


@pytest.mark.parametrize(
    ("decay", "noise_std", "steps", "least"),
    [(0.5, 1.3547998, 11, -1.0), (0.5, 0.25679, 11, 0.1), (0.0, 0.5, 8, 0.5)],
)
def test_gradient_clipping_is_never_exceeded(decay, noise_std, steps, least):
    generator = np.random.default_rng(11)
    rate, clip, start = 0.01, 10.0, 2.0
    worlds = [
        clipped_walk(
            sign * start,
            contraction=1 - decay,
            push=rate * clip,
            noise_stds=[noise_std] * steps,
            generator=generator,
        )
        for sign in (1, -1)
    ]
    claimed = gradient_clipping.account(
        initial_clip=start,
        gradient_clip=clip,
        learning_rate=rate,
        weight_decay=decay / rate,
        noise_std=noise_std,
        steps=steps,
    ).mu
    assert least < mu_lower_bound(*worlds) <= claimed


@pytest.mark.parametrize("steps", [5, 11])
def test_the_coupling_is_tight_for_worlds_that_mirror_each_other(steps):
    generator = np.random.default_rng(21)
    worlds = [
        clipped_walk(
            sign, contraction=0.5, push=0.1, noise_stds=[0.275702] * steps, generator=generator
        )
        for sign in (1, -1)
    ]
    claimed = gradient_clipping.account(
        initial_clip=1.0,
        gradient_clip=10.0,
        learning_rate=0.01,
        weight_decay=50.0,
        noise_std=0.275702,
        steps=steps,
    )
    bound = 1 - sum(rates(*worlds))
    assert bound <= claimed.advantage()
    assert bound > (0.9 if steps == 5 else 0.5) * claimed.advantage()
    assert claimed.advantage() < 0.7 * gaussian.advantage_of(mu=claimed.mu)


@pytest.mark.parametrize("epsilon", [0.05, 0.2])
def test_the_coupling_holds_above_epsilon_zero(epsilon):
    generator = np.random.default_rng(22)
    steps = 6
    worlds = [
        clipped_walk(
            sign, contraction=0.5, push=0.1, noise_stds=[0.275702] * steps, generator=generator
        )
        for sign in (1, -1)
    ]
    half = DRAWS // 2
    thresholds = np.linspace(-0.5, 1.5, 101)
    gains = [
        np.mean(worlds[0][:half] > t) - math.exp(epsilon) * np.mean(worlds[1][:half] > t)
        for t in thresholds
    ]
    threshold = thresholds[int(np.argmax(gains))]
    inside = 1 - upper(int(np.sum(worlds[0][half:] <= threshold)), half)
    outside = upper(int(np.sum(worlds[1][half:] > threshold)), half)
    claimed = reflection.apart_after(2.0, ((reflection.NoisyStep(0.5, 0.2, 0.275702), steps),))
    bound = inside - math.exp(epsilon) * outside
    assert 0.5 * claimed.delta(epsilon=epsilon) < bound <= claimed.delta(epsilon=epsilon)


def test_a_chain_that_is_rounded_at_every_step_stays_below_its_claim():
    # A grid so coarse that rounding shows: the worst map pushes from where it was rounded to.
    generator = np.random.default_rng(23)
    grid, steps, noise_std = 0.25, 6, 0.5
    worlds = []
    for sign in (1, -1):
        x = np.full(DRAWS, sign * 1.0)
        for _ in range(steps):
            rounded = grid * np.round(x / grid + sign * 0.49)
            x = 0.5 * rounded + noise_std * generator.standard_normal(DRAWS)
        worlds.append(x)
    chain = NoisyChain(start_distance=2.0)
    blind = NoisyChain(start_distance=2.0)
    for _ in range(steps):
        chain.step(0.5, 0.5 * 2 * grid, noise_std)
        blind.step(0.5, 0.0, noise_std)
    bound = mu_lower_bound(*worlds)
    assert blind.certified_mu() < bound <= chain.certified_mu()


def test_the_published_noise_does_not_keep_its_claim():
    # Koloskova et al. 2025: C0 = 20, C1 = 10, gamma = 0.01, lambda = 50, T = 11 for (1, 1e-5).
    generator = np.random.default_rng(12)
    worlds = [
        clipped_walk(
            sign * 20.0,
            contraction=0.5,
            push=0.1,
            noise_stds=[0.25679] * 11,
            generator=generator,
        )
        for sign in (1, -1)
    ]
    claimed = gaussian.mu_of(epsilon=1.0, delta=1e-5)
    assert mu_lower_bound(*worlds) > claimed


def test_the_published_noise_of_a_single_step_is_as_bad_as_computed():
    # lambda = 200, C1 = 100, gamma = 0.001, C0 = 0.1, T = 1: one step is exactly Gaussian.
    generator = np.random.default_rng(13)
    worlds = [
        clipped_walk(
            sign * 0.1, contraction=0.8, push=0.1, noise_stds=[0.254558], generator=generator
        )
        for sign in (1, -1)
    ]
    bound = mu_lower_bound(*worlds)
    assert 0.9 * math.sqrt(2) < bound <= math.sqrt(2) * 1.0001


def test_a_falling_noise_schedule_is_never_exceeded():
    generator = np.random.default_rng(14)
    noise_stds = [1.0] + [0.05] * 10
    worlds = [
        clipped_walk(
            sign * 0.5, contraction=1.0, push=0.1, noise_stds=noise_stds, generator=generator
        )
        for sign in (1, -1)
    ]
    claimed = gradient_clipping.account(
        initial_clip=0.5,
        gradient_clip=10.0,
        learning_rate=0.01,
        weight_decay=0.0,
        noise_std=noise_stds,
        steps=11,
    ).mu
    bound = mu_lower_bound(*worlds)
    assert 0.5 * claimed < bound <= claimed


@pytest.mark.parametrize("mechanism", ["noisy_sgd", "tracked_release", "output_perturbation"])
def test_linear_mechanisms_are_tight(mechanism):
    generator = np.random.default_rng(15)
    drift, rate, steps = 0.3, 0.9, 6
    given = {"learning_rate": 2.0, "weight_decay": 0.05, "smoothness": 0.25, "drift": drift}
    noise = generator.standard_normal((2, steps, DRAWS))
    worlds = [np.zeros(DRAWS), np.full(DRAWS, drift)]
    if mechanism == "noisy_sgd":
        for step in range(steps):
            worlds = [rate * x + 0.1 * noise[k, step] for k, x in enumerate(worlds)]
        claimed = projected_noisy_sgd.account(**given, noise_std=0.1, steps=steps).mu
    elif mechanism == "tracked_release":
        worlds = [rate**steps * x + 0.1 * noise[k, 0] for k, x in enumerate(worlds)]
        claimed = tracked_release.account(**given, noise_std=0.1, steps=steps).mu
    else:
        worlds = [x - drift / 2 + 0.2 * noise[k, 0] for k, x in enumerate(worlds)]
        claimed = output_perturbation.account(initial_clip=drift / 2, noise_std=0.2).mu
    bound = mu_lower_bound(worlds[1], worlds[0])
    assert 0.9 * claimed < bound <= claimed


def test_noisy_gradient_descent_is_tight_for_present_and_for_deleted_records():
    generator = np.random.default_rng(16)
    given = {
        "learning_rate": 1.0,
        "weight_decay": 0.1,
        "smoothness": 0.25,
        "lipschitz": 1.0,
        "records": 10,
    }
    worlds = [np.zeros(DRAWS), np.zeros(DRAWS)]
    for _ in range(30):
        worlds = [
            0.9 * x + push + 0.2 * generator.standard_normal(DRAWS)
            for x, push in zip(worlds, (-0.1, 0.1), strict=True)
        ]
    present = noisy_gd_convex.account_present(**given, noise_std=0.2, steps=30).mu
    bound = mu_lower_bound(worlds[1], worlds[0])
    assert 0.9 * present < bound <= present
    for _ in range(5):
        worlds = [0.9 * x + 0.2 * generator.standard_normal(DRAWS) for x in worlds]
    deleted = noisy_gd_convex.account(
        **given, noise_std=0.2, training_steps=30, unlearning_steps=5
    ).mu
    bound = mu_lower_bound(worlds[1], worlds[0])
    assert 0.9 * deleted < bound <= deleted


def test_the_running_minimum_would_be_wrong_for_present_records():
    # Large noise first, then little: late differences stand out, and only the minorant says so.
    generator = np.random.default_rng(17)
    noise_stds = [2.0] * 3 + [0.1] * 3
    worlds = [np.zeros(DRAWS), np.zeros(DRAWS)]
    chain = NoisyChain(start_distance=0.0)
    for noise_std in noise_stds:
        # The attacker sees the last iterate of maps that pull to 0 first and differ later.
        worlds = [
            0.05 * x + push + noise_std * generator.standard_normal(DRAWS)
            for x, push in zip(worlds, (-0.05, 0.05), strict=True)
        ]
        chain.step(0.05, 0.1, noise_std)
    claimed = present_records.minorant_mu(
        start_distance=0.0, contractions=[0.05] * 6, shifts=[0.1] * 6, noise_stds=noise_stds
    )
    bound = mu_lower_bound(worlds[1], worlds[0])
    assert 0.9 * claimed < bound <= claimed
    assert bound > chain.certified_mu()


def test_an_adaptive_requester_stays_below_the_composition():
    # The requester's choice reveals the sign of an earlier release; the last release adds its own.
    generator = np.random.default_rng(18)
    present, deletion = 0.6, 0.4
    scores = []
    for sign in (1, -1):
        earlier = sign * present / 2 + generator.standard_normal(DRAWS)
        last = sign * deletion / 2 + generator.standard_normal(DRAWS)
        # What the request encodes is at most the earlier release itself: the optimal score.
        scores.append(present * earlier + deletion * last)
    terms = output_perturbation.TERMS
    guarantee = output_perturbation.account(initial_clip=1.0, noise_std=1.0)
    claimed = adaptive.compose(
        deletion=type(guarantee)(terms=terms, mu=deletion),
        present=type(guarantee)(terms=terms, mu=present),
        earlier_releases=1,
    ).mu
    bound = mu_lower_bound(*scores)
    assert 0.9 * claimed < bound <= claimed


def test_model_clipping_is_never_exceeded():
    generator = np.random.default_rng(19)
    epsilon, clip, noise_std = 0.5, 0.5, 0.8
    for steps in (1, 2):
        worlds = []
        for sign in (1, -1):
            x = np.full(DRAWS, sign * 3.0)
            for _ in range(steps):
                # The gradient drives every iterate to the rim of the ball on its own side.
                x = clip * np.sign(x) + noise_std * generator.standard_normal(DRAWS)
            worlds.append(x)
        half = DRAWS // 2
        thresholds = np.linspace(-2, 3, 101)
        gains = [
            np.mean(worlds[0][:half] > t) - math.exp(epsilon) * np.mean(worlds[1][:half] > t)
            for t in thresholds
        ]
        threshold = thresholds[int(np.argmax(gains))]
        inside = 1 - upper(int(np.sum(worlds[0][half:] <= threshold)), half)
        outside = upper(int(np.sum(worlds[1][half:] > threshold)), half)
        claimed = model_clipping.account(
            epsilon=epsilon, initial_clip=3.0, model_clip=clip, noise_std=noise_std, steps=steps
        ).at_delta
        bound = inside - math.exp(epsilon) * outside
        assert bound <= claimed
        if steps == 1:
            assert bound > 0.9 * claimed


def test_the_advantage_of_an_attacker_is_tight():
    generator = np.random.default_rng(20)
    mu = 1.0
    first = mu + generator.standard_normal(DRAWS)
    second = generator.standard_normal(DRAWS)
    missed, false = rates(first, second)
    claimed = gaussian.advantage_of(mu=mu)
    assert 0.9 * claimed < 1 - missed - false <= claimed

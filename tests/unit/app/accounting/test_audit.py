"""Worst-case audits (MATH.md section 10): attack the recursions themselves.

Each audit simulates one-dimensional worlds at least 100 000 times, chooses a threshold on one half
of the draws, and on the other half bounds from below, with Clopper-Pearson limits, what any honest
guarantee must admit. Every bound fails with probability at most 1e-6; seeds are fixed.
"""

import math

import numpy as np
import pytest

from app.accounting import gaussian, gradient_clipping, model_clipping, output_perturbation
from app.accounting.chains import minorant, reflection
from app.accounting.chains.noisy_chain import NoisyChain, NoisyStep
from app.accounting.histories.history import History, Release, Steps
from app.accounting.histories.history_account import HistoryAccountant
from tests.support.attacking import mu_lower_bound, rates, upper
from tests.support.histories import recipe

DRAWS = 200_000


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
    claimed = reflection.apart_after(2.0, ((NoisyStep(0.5, 0.2, 0.275702), steps),))
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


def test_output_perturbation_is_tight():
    generator = np.random.default_rng(15)
    worlds = [sign * 0.15 + 0.2 * generator.standard_normal(DRAWS) for sign in (1, -1)]
    claimed = output_perturbation.account(initial_clip=0.15, noise_std=0.2).mu
    assert 0.9 * claimed < mu_lower_bound(*worlds) <= claimed


def lived_through(history, generator, *, releases=False):
    """Two worlds of a linear loss: all that the forgotten records push goes one way."""
    worlds, shown = [np.zeros(DRAWS), np.zeros(DRAWS)], []
    constants = history.recipe
    for event, position, present in history.walk():
        noise = (event.noise_std if isinstance(event, Steps | Release) else 0.0) * np.ones(2)
        pushes = [(1.0, 0.0)] if isinstance(event, Release) else []
        if isinstance(event, Steps):
            pushes = [
                (constants.contraction, constants.shift * present.get(step % constants.batches, 0))
                for step in range(position, position + event.count)
            ]
        for rate, push in pushes:
            worlds = [
                rate * x + sign * push / 2 + std * generator.standard_normal(DRAWS)
                for x, sign, std in zip(worlds, (1, -1), noise, strict=True)
            ]
        if isinstance(event, Release):
            shown.append(worlds)
    return shown if releases else worlds


TRAINED = History(recipe()).after_steps(23)
NOISY = History(recipe()).after_steps(23, noise_std=0.4)
FULL_BATCH = History(recipe(batches=1)).after_steps(20, noise_std=0.4)
HISTORIES = {
    "one release": TRAINED.after_request({2: 1}).after_release(noise_std=0.5),
    "steps and a top-up": TRAINED.after_release(noise_std=0.4)
    .after_request({2: 1})
    .after_steps(6)
    .after_release(noise_std=0.3),
    "three requests, two top-ups": TRAINED.after_request({2: 1})
    .after_release(noise_std=0.8)
    .after_request({1: 1})
    .after_release(noise_std=0.3)
    .after_steps(4)
    .after_request({0: 1})
    .after_release(noise_std=0.5),
    "noisy steps since the request": TRAINED.after_request({2: 2}).after_steps(9, noise_std=0.2),
    "noise of training": FULL_BATCH.after_request({0: 1}).after_steps(5, noise_std=0.4),
    "a quiet run after a noisy one": NOISY.after_release()
    .after_steps(7)
    .after_release(noise_std=0.3)
    .after_request({2: 1})
    .after_steps(3, noise_std=0.1),
    "a request that a release already covers": TRAINED.after_release(noise_std=0.6)
    .after_request({2: 1})
    .after_release()
    .after_request({4: 1}),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_no_attack_on_a_history_exceeds_its_claim(name):
    history = HISTORIES[name]
    claimed = HistoryAccountant(history, output_perturbation.TERMS).guarantee().mu
    bound = mu_lower_bound(*lived_through(history, np.random.default_rng(16)))
    # Where the minorant has corners, only maps that are not linear are as bad as it says.
    least = 0.75 if name == "a quiet run after a noisy one" else 0.9
    assert least * claimed < bound <= claimed


def test_noise_that_was_never_added_would_have_been_a_false_claim():
    """What a certificate said of a head trained without noise: that every step had added it."""
    generator = np.random.default_rng(21)
    invented = FULL_BATCH.after_request({0: 1})
    claimed = HistoryAccountant(invented, output_perturbation.TERMS).guarantee().mu
    really = History(recipe(batches=1)).after_steps(20).after_release(noise_std=0.05)
    worlds = lived_through(really.after_request({0: 1}), generator)
    assert mu_lower_bound(*worlds) > 2 * claimed


def test_an_adaptive_requester_stays_below_the_composition():
    """Whoever sees every release weighs what each run has added since the one before."""
    generator = np.random.default_rng(18)
    history = FULL_BATCH.after_release().after_steps(6, noise_std=0.4).after_release()
    asked = history.after_request({0: 1}).after_steps(9, noise_std=0.4).after_release()
    first, second, third = lived_through(asked, generator, releases=True)
    rate, push = asked.recipe.contraction, asked.recipe.shift

    def weight(steps):
        moved = push * (1 - rate**steps) / (1 - rate)
        return moved / (0.16 * (1 - rate ** (2 * steps)) / (1 - rate**2))

    scores = [
        weight(20) * x + weight(6) * (y - rate**6 * x) for x, y in zip(first, second, strict=True)
    ]
    claimed = HistoryAccountant(asked, output_perturbation.TERMS, adaptive=True).guarantee().mu
    bound = mu_lower_bound(*scores)
    assert 0.9 * claimed < bound <= claimed
    # The last run reads no forgotten record: given the releases before, it says nothing more.
    since = [z - rate**9 * y for y, z in zip(second, third, strict=True)]
    assert mu_lower_bound(*since) < 0.02
    # Requests fixed in advance leave the last release alone to look at.
    alone = HistoryAccountant(asked, output_perturbation.TERMS).guarantee().mu
    assert mu_lower_bound(*third) <= alone < bound


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
    claimed = minorant.minorant_mu(
        start_distance=0.0, contractions=[0.05] * 6, shifts=[0.1] * 6, noise_stds=noise_stds
    )
    bound = mu_lower_bound(worlds[1], worlds[0])
    assert 0.9 * claimed < bound <= claimed
    assert bound > chain.certified_mu()


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

"""One step of descent, and the runs that are made of it."""

import json
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction

import pytest
import safetensors.numpy
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.accounting import gaussian
from app.accounting.histories.history import History, Recipe, Release, Steps
from app.accounting.histories.history_account import HistoryAccountant, drift
from app.accounting.histories.strong_convexity import contraction
from app.accounting.precision import grid_of
from app.domain.errors import PlanError, TargetNotMetError
from app.domain.plan import Plan
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.verification import verify
from app.planning.mechanisms.projected_noisy_sgd import ProjectedNoisySgd
from app.planning.tracking import history_of_run
from tests.support.bundles import signed_payload
from tests.support.insecure_noise import InsecureNoise
from tests.support.statements import digest_of, restating_claims, synthetic
from tests.support.trust import trust
from workers.mechanisms.descent import Descent, from_plan
from workers.training.noisy_phase import Conditions

SIZE = 50_000
TARGET = {"epsilon": 1.0, "delta": 1e-5}
RATE, DECAY = 0.5, 0.1
# One record, seen in one step without noise, and forgotten: a drift of 0.5.
HISTORY = (
    History(
        Recipe(
            learning_rate=RATE,
            weight_decay=DECAY,
            smoothness=0.5,
            lipschitz=1.0,
            batch_size=1,
            batches=1,
        )
    )
    .after_steps(1)
    .after_request({0: 1})
)


class NoNoise:
    """Fails where noise is asked for."""

    name = "none"

    drawn = {}  # noqa: RUF012

    def add_(self, position, noise_std):
        raise AssertionError("this step has no noise")


def noise(seed=1):
    return InsecureNoise(seed, environment="test")


def full(value, size=SIZE):
    return torch.full((size,), value, dtype=torch.float64)


def noised(position, noise_std):
    noise().add_(position, noise_std)
    return position


def planned(mechanism, *, steps, noise_std=0.0, release_noise_std=0.0):
    plan = Plan(
        mechanism=mechanism,
        parameters={"history": HISTORY.to_json()},
        **TARGET,
        budget_epochs=1.0,
        predicted={},
        settings={
            "learning_rate": RATE,
            "weight_decay": DECAY,
            "training_steps": 0,
            "steps": steps,
            "noise_std": noise_std,
            "release_noise_std": release_noise_std,
        },
        history=HISTORY.to_json(),
    )
    return replace(plan, parameters={"history": history_of_run(plan, steps=steps).to_json()})


def noisy(*, steps, noise_std=0.2):
    return from_plan(planned("projected_noisy_sgd", steps=steps, noise_std=noise_std))


def released(*, steps, noise_std):
    return from_plan(planned("tracked_release", steps=steps, release_noise_std=noise_std))


def release_noise(steps):
    left = drift(HISTORY) * HISTORY.recipe.contraction**steps
    return left / gaussian.mu_of(**TARGET) * (1 + 1e-9)


def test_a_step_follows_its_formula():
    position, gradient = full(2.0), full(0.4)
    Descent(RATE, DECAY, noise_std=0.3).step_(position, gradient, noise())
    expected = noised(full(2.0 - RATE * (0.4 + DECAY * 2.0)), 0.3)
    assert (position - expected).abs().max() <= grid_of(0.3)
    assert (position / grid_of(0.3)).frac().eq(0).all()


def test_a_step_without_noise_draws_none():
    position = full(2.0, 4)
    Descent(RATE, DECAY).step_(position, torch.zeros(4), NoNoise())
    assert position.tolist() == pytest.approx([2.0 * (1 - RATE * DECAY)] * 4)


def test_weights_are_projected_after_their_noise():
    position = full(0.0)
    Descent(RATE, DECAY, noise_std=5.0, radius=2.0).step_(position, torch.zeros(SIZE), noise())
    assert 1.999 < float(position.norm()) <= 2.0


def test_weights_inside_the_ball_are_left_alone():
    position = full(0.1, 4)
    Descent(RATE, DECAY, radius=2.0).step_(position, torch.zeros(4), NoNoise())
    assert position.tolist() == pytest.approx([0.1 * (1 - RATE * DECAY)] * 4)


@pytest.mark.parametrize("decay", [5e-9, pytest.param(1e-4, marks=pytest.mark.slow)])
def test_drift_contracts_by_the_factor_that_was_accounted_for_however_small(decay):
    """In float32 the factor of the first is 1, and of the second rounded to nearest."""
    rate, steps, size = 1.0, 20_000, 8
    starts = [full(value, size) for value in (1.0, 1.0 + 1e-7)]
    ends = [start.clone() for start in starts]
    for end in ends:
        for _ in range(steps):
            Descent(rate, decay).step_(end, torch.zeros(size), NoNoise())
    factor = Fraction(contraction(learning_rate=rate, weight_decay=decay, smoothness=0.5))
    for start, end in zip(starts, ends, strict=True):
        exact = Fraction(float(start[0])) * factor**steps
        assert abs(Fraction(float(end[0])) - exact) <= steps * Fraction(float(start[0])) / 2**51
        assert end.unique().numel() == 1
    drift = 1e-7 * float(factor) ** steps
    assert float(ends[1][0] - ends[0][0]) == pytest.approx(drift, rel=1e-4)


def test_small_noise_is_added_on_its_own_grid_and_hides_less_than_it_at_most():
    """What rounding moves a noisy step by is at most half a cell, also where noise is 1e-9."""
    position, noise_std = full(1.0), 1e-9
    Descent(1.0, 5e-9, noise_std=noise_std).step_(position, torch.zeros(SIZE), noise())
    expected = noised(full(1 - 5e-9), noise_std)
    assert (position - expected).abs().max() <= grid_of(noise_std)
    assert float(position.mean()) == pytest.approx(1 - 5e-9, abs=6 * noise_std / SIZE**0.5)


def test_weights_of_float32_are_refused():
    with pytest.raises(ValueError, match="float64"):
        Descent(RATE, DECAY).step_(torch.ones(4), torch.zeros(4), NoNoise())
    with pytest.raises(ValueError, match="float64"):
        released(steps=0, noise_std=release_noise(0)).begin(
            torch.ones(4), Conditions(noise=noise(), **TARGET)
        )


def test_settings_without_noise_or_radius_have_none():
    settings = {"learning_rate": RATE, "weight_decay": DECAY}
    assert Descent.from_settings(settings) == Descent(RATE, DECAY, noise_std=0.0, radius=None)
    full = {**settings, "noise_std": 0.2, "radius": 3.0, "batches": 4}
    assert Descent.from_settings(full) == Descent(RATE, DECAY, noise_std=0.2, radius=3.0)


def needed_steps():
    account, steps = noisy(steps=1).account, 1
    while not account(steps).meets(**TARGET):
        steps += 1
    return steps


def test_the_record_that_is_forgotten_has_drifted():
    assert drift(HISTORY) == pytest.approx(0.5)


@pytest.mark.parametrize("training_steps", [0, 5])
def test_a_rule_counts_its_plans_whole_history_with_the_training_that_is_ahead(training_steps):
    plan = planned("projected_noisy_sgd", steps=4, noise_std=0.2, release_noise_std=0.3)
    plan = replace(plan, settings={**plan.settings, "training_steps": training_steps})
    rule = from_plan(plan)
    assert (rule.steps, rule.release_noise_std) == (4, 0.3)
    assert rule.descent == Descent(RATE, DECAY, noise_std=0.2)
    before = HISTORY.after_steps(training_steps, noise_std=0.2)
    accountant = HistoryAccountant(before, ProjectedNoisySgd.terms)
    assert rule.account(3) == accountant.guarantee(steps=3, noise_std=0.2)
    assert rule.account(4) == accountant.guarantee(steps=4, noise_std=0.2, release_noise_std=0.3)


def test_a_noisy_run_is_met_by_the_steps_that_it_took():
    needed = needed_steps()
    assert needed > 1
    run = noisy(steps=needed).begin(full(0.0, 8), Conditions(noise=noise(), **TARGET))
    assert run.guarantee() is None
    for taken in range(1, needed + 1):
        assert not run.met
        run.step(full(0.0, 8), torch.zeros(8))
        assert run.guarantee().mu == noisy(steps=needed).account(taken).mu
    assert run.met
    assert run.guarantee().meets(**TARGET)


def test_a_noisy_run_takes_no_fewer_steps_than_planned():
    needed = needed_steps()
    run = noisy(steps=needed + 2).begin(full(0.0, 8), Conditions(noise=noise(), **TARGET))
    for _ in range(needed + 1):
        run.step(full(0.0, 8), torch.zeros(8))
    assert run.guarantee().meets(**TARGET)
    assert not run.met


def test_too_few_noisy_steps_are_refused():
    with pytest.raises(TargetNotMetError):
        noisy(steps=needed_steps() - 1).begin(full(0.0, 8), Conditions(noise=noise(), **TARGET))


def test_weights_of_another_number_than_was_accounted_for_are_refused():
    rule = replace(noisy(steps=needed_steps()), dimension=9)
    with pytest.raises(PlanError, match="must be 8, not 9"):
        rule.begin(full(0.0, 8), Conditions(noise=noise(), **TARGET))
    rule.begin(full(0.0, 9), Conditions(noise=noise(), **TARGET))


def test_a_release_without_steps_is_noised_at_once():
    position = full(2.0)
    noise_std = release_noise(0)
    run = released(steps=0, noise_std=noise_std).begin(
        position, Conditions(noise=noise(), **TARGET)
    )
    assert run.met
    assert run.steps == 0
    assert torch.equal(position, noised(full(2.0), noise_std))
    assert run.guarantee().meets(**TARGET)


def test_a_release_is_noised_once_after_its_last_step():
    position, noise_std = full(2.0), release_noise(3)
    run = released(steps=3, noise_std=noise_std).begin(
        position, Conditions(noise=noise(), **TARGET)
    )
    expected = 2.0
    for _ in range(2):
        run.step(position, torch.full((SIZE,), 0.4))
        expected += -RATE * (0.4 + DECAY * expected)
        assert position.unique().tolist() == pytest.approx([expected])
        assert not run.met
        assert run.guarantee() is None
    run.step(position, torch.full((SIZE,), 0.4))
    expected += -RATE * (0.4 + DECAY * expected)
    assert run.met
    assert (position - noised(full(expected), noise_std)).abs().max() <= grid_of(noise_std)
    assert run.guarantee().meets(**TARGET)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_release_with_too_little_noise_is_refused_before_anything_changes(steps):
    position = full(1.0, 8)
    rule = released(steps=steps, noise_std=0.99 * release_noise(steps))
    with pytest.raises(TargetNotMetError):
        rule.begin(position, Conditions(noise=noise(), **TARGET))
    assert (position == 1.0).all()


@pytest.mark.parametrize("radius", [None, 1e-3, 0.3, 3.0, 1e4])
@pytest.mark.parametrize(
    "name", ["projected_noisy_sgd", "tracked_release", "tracked_release_covering"]
)
def test_weights_that_were_projected_as_stated_are_verified(name, radius):
    """Whatever the noise: it may throw weights far out of their ball, or leave them well inside."""
    case = synthetic()[name]
    mechanism = case.statement["predicate"]["mechanism"]
    parameters = deepcopy(mechanism["parameters"])
    recipe = parameters["history"]["recipe"]
    recipe["radius"] = radius
    source, position = noise(), torch.zeros(recipe["dimension"], dtype=torch.float64)
    gradients = torch.Generator().manual_seed(2)
    for event in History.from_json(parameters["history"]).events:
        match event:
            case Steps(count, noise_std):
                settings = recipe | {"noise_std": noise_std}
                for _ in range(count):
                    gradient = torch.randn(len(position), generator=gradients).double()
                    Descent.from_settings(settings).step_(position, gradient, source)
            case Release(noise_std) if noise_std > 0:
                source.add_(position, noise_std)
    weights = safetensors.numpy.save({"weight": position.numpy().reshape(3, 4)})
    statement = restating_claims(case.statement, mechanism=mechanism["name"], parameters=parameters)
    statement["subject"][0]["digest"]["sha256"] = digest_of(weights)
    signer = StatementSigner(Ed25519PrivateKey.generate())
    bundle = json.dumps(signed_payload(json.dumps(statement).encode(), signer)).encode()
    assert verify(bundle=bundle, weights=weights, trusted=trust(signer))

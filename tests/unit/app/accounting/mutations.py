"""One per cent more optimistic: does any test notice?

``MUTATIONS`` names, for every accountant, its formula (a function), how to make its answer 1 %
better than was proved, and the test module that owes the protest. ``caught_by`` swaps the formula
everywhere in ``app.accounting`` and runs that module's own test functions, those that pytest runs,
until one fails. Only a failed assertion counts. Retraining is exact and cannot be more optimistic.
"""

import contextlib
import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import pytest

from app.accounting.chains.noisy_chain import NoisyStep
from app.accounting.chains.reflection import Uncoupled
from app.accounting.computed_guarantee import ComputedGuarantee
from app.accounting.guarantees import (
    GaussianGuarantee,
    Guarantee,
    PointGuarantee,
    ProfileGuarantee,
    RenyiGuarantee,
)
from app.accounting.precision import Residue

SHARE = 0.99
PACKAGE = "app.accounting"


@dataclass(frozen=True)
class Mutation:
    """One formula and who must notice when it turns optimistic.

    Attributes:
        target: module and attribute below ``app.accounting``, such as ``gaussian.mu_of``.
        tests: test module below ``tests.unit.app.accounting``.
        better: from the honest answer to one that is 1 % more optimistic.
    """

    target: str
    tests: str
    better: Callable[[object], object]

    def __str__(self) -> str:
        return f"{self.target} by {self.better.__name__}"


def smaller(value: object) -> object:
    """1 % less mu, epsilon, delta, drift, noise or advantage."""
    return value * SHARE


def smaller_each(values: Iterable[float]) -> list[float]:
    """1 % less of each."""
    return [value * SHARE for value in values]


def larger(value: object) -> object:
    """1 % more: the mu that a target allows."""
    return value / SHARE


def smaller_log(value: object) -> object:
    """1 % less of what the logarithm stands for."""
    return value + math.log(SHARE)


def fewer(value: object) -> object:
    """1 % fewer steps, at least one fewer."""
    if isinstance(value, tuple):
        return tuple(math.floor(count * SHARE) for count in value)
    return math.floor(value * SHARE)


def more(value: object) -> object:
    """1 % more records, at least one more."""
    return math.floor(value / SHARE) + 1


def smaller_residue(value: Residue) -> Residue:
    """1 % less of what floats leave."""
    return replace(value, mu=value.mu * SHARE, delta=value.delta * SHARE)


def better_guarantee(value: object) -> object:
    """1 % less of whatever a guarantee is made of."""
    if isinstance(value, ComputedGuarantee):
        return replace(value, inner=better_guarantee(value.inner))
    if isinstance(value, GaussianGuarantee):
        return replace(value, mu=value.mu * SHARE)
    if isinstance(value, RenyiGuarantee):
        curve = value.curve
        return replace(value, curve=lambda order: curve(order) * SHARE)
    if isinstance(value, ProfileGuarantee):
        delta_at, epsilon_at = value.delta_at, value.epsilon_at
        return replace(
            value,
            delta_at=lambda epsilon: delta_at(epsilon) * SHARE,
            epsilon_at=lambda delta: epsilon_at(delta) * SHARE,
        )
    raise TypeError(type(value))


def smaller_shift(value: NoisyStep) -> NoisyStep:
    """1 % less shift in a step of a chain."""
    return replace(value, shift=value.shift * SHARE)


def fewer_apart(value: Uncoupled) -> Uncoupled:
    """1 % fewer worlds that have not met."""
    return replace(value, masses=tuple(mass * SHARE for mass in value.masses))


def better_point_epsilon(value: PointGuarantee) -> Guarantee:
    """1 % less epsilon of a point."""
    return replace(value, at_epsilon=value.at_epsilon * SHARE)


def better_point_delta(value: PointGuarantee) -> Guarantee:
    """1 % less delta of a point."""
    return replace(value, at_delta=value.at_delta * SHARE)


def _accountant(name: str, tests: str, better: Callable[[object], object]) -> list[Mutation]:
    return [
        Mutation(f"{name}.account", tests, better),
        Mutation(f"{name}.calibrate", tests, smaller),
    ]


MUTATIONS = [
    # The conversions that everything rests on.
    Mutation("gaussian.log_delta", "test_gaussian", smaller_log),
    Mutation("gaussian.rounded_log_delta", "test_gaussian", smaller_log),
    Mutation("gaussian.delta_of", "test_gaussian", smaller),
    Mutation("gaussian.epsilon_of", "test_gaussian", smaller),
    Mutation("gaussian.mu_of", "test_gaussian", larger),
    Mutation("gaussian.advantage_of", "test_gaussian", smaller),
    Mutation("gaussian.surviving_information_bits", "test_gaussian", smaller),
    Mutation("renyi.best_epsilon", "test_renyi", smaller),
    Mutation("renyi.best_log_delta", "test_renyi", smaller_log),
    Mutation("renyi.advantage", "test_renyi", smaller),
    Mutation("guarantees.PointGuarantee.advantage", "test_guarantees", smaller),
    # What floats leave.
    Mutation("guarantees.GaussianGuarantee.delta", "test_guarantees", smaller),
    Mutation("guarantees.GaussianGuarantee.epsilon", "test_guarantees", smaller),
    Mutation("computed_guarantee.ComputedGuarantee.delta", "test_computed_guarantee", smaller),
    Mutation("computed_guarantee.ComputedGuarantee.epsilon", "test_computed_guarantee", smaller),
    Mutation("computed_guarantee.ComputedGuarantee.advantage", "test_computed_guarantee", smaller),
    Mutation("precision.sampling_residue", "test_gradient_clipping", smaller_residue),
    Mutation("precision.noise_norm", "test_precision", smaller),
    Mutation("precision.cell_diagonal", "test_precision", smaller),
    Mutation("gradient_clipping.with_rounding", "test_gradient_clipping", smaller_shift),
    Mutation("gradient_clipping.chain_residue", "test_gradient_clipping", smaller_residue),
    Mutation("dp_sgd.largest_sample", "test_dp_sgd", fewer),
    Mutation("model_clipping.separation_of", "test_model_clipping", smaller),
    # The coupling.
    Mutation("chains.reflection.Uncoupled.delta", "chains.test_reflection", smaller),
    Mutation("chains.reflection.Uncoupled.epsilon", "chains.test_reflection", smaller),
    Mutation("chains.reflection.apart_after", "test_gradient_clipping", fewer_apart),
    Mutation(
        "chains.reflection_profile.ReflectionProfile.delta", "chains.test_reflection", smaller
    ),
    Mutation("gradient_clipping.CoupledGuarantee.delta", "test_gradient_clipping", smaller),
    Mutation(
        "gradient_clipping.CoupledGuarantee.epsilon",
        "test_gradient_clipping",
        smaller,
    ),
    # What several mechanisms share.
    Mutation("chains.noisy_chain.constant_mu", "chains.test_noisy_chain", smaller),
    Mutation("chains.noisy_chain.prefix_mu", "chains.test_noisy_chain", smaller),
    Mutation("chains.noisy_chain.NoisyChain.step", "test_gradient_clipping", smaller),
    Mutation("chains.noisy_chain.NoisyChain.certified_mu", "chains.test_noisy_chain", smaller),
    Mutation("histories.strong_convexity.contraction", "histories.test_strong_convexity", smaller),
    Mutation(
        "histories.strong_convexity.gradient_shift", "histories.test_strong_convexity", smaller
    ),
    Mutation("chains.minorant.minorant_mu", "chains.test_present_records", smaller),
    Mutation("chains.minorant.power", "chains.test_minorant", smaller),
    Mutation("chains.minorant.geometric_sum", "chains.test_minorant", smaller),
    Mutation("chains.minorant.geometric_sum", "chains.test_minorant", larger),
    Mutation("chains.minorant.Minorant.mu", "chains.test_minorant", smaller),
    # A lineage's history, and what floats leave.
    Mutation("histories.history.History.noise_std", "histories.test_history", larger),
    Mutation("histories.history_account.drift", "histories.test_history_drift", smaller),
    Mutation("histories.history_account.worst_case_drift", "histories.test_history_drift", smaller),
    Mutation(
        "histories.history_account.HistoryAccountant.guarantee",
        "histories.test_history_account",
        better_guarantee,
    ),
    Mutation(
        "histories.history_account.HistoryAccountant._ideal_mu",
        "histories.test_history_account",
        smaller,
    ),
    Mutation("histories.history_account.step_error", "histories.test_history_rounding", smaller),
    Mutation("histories.history_account.reaches", "histories.test_history_rounding", smaller_each),
    Mutation(
        "histories.history_account.residue_of", "histories.test_history_rounding", smaller_residue
    ),
    # The mechanisms.
    *_accountant("gradient_clipping", "test_gradient_clipping", better_guarantee),
    *_accountant("output_perturbation", "test_output_perturbation", better_guarantee),
    Mutation("model_clipping.account", "test_model_clipping", better_point_delta),
    Mutation("model_clipping.steps_needed", "test_model_clipping", fewer),
    Mutation("model_clipping.Odometer.step", "test_model_clipping", smaller_log),
    Mutation("gaussian.rounded_log_delta", "test_model_clipping", smaller_log),
    Mutation("model_clipping.Odometer.guarantee", "test_model_clipping", better_point_delta),
    Mutation("noisy_gd_nonconvex.account", "test_noisy_gd_nonconvex", better_guarantee),
    Mutation("noisy_gd_nonconvex.steps_needed", "test_noisy_gd_nonconvex", fewer),
    *_accountant("dp_sgd", "test_dp_sgd", better_guarantee),
    # The papers' own bounds.
    Mutation("published.koloskova.theorem_4_1", "published.test_koloskova", better_point_epsilon),
    Mutation("published.koloskova.theorem_4_2", "published.test_koloskova", better_point_delta),
    Mutation("published.koloskova.theorem_a_9", "published.test_koloskova", better_guarantee),
    Mutation(
        "published.koloskova.classical_output_perturbation",
        "published.test_koloskova",
        better_point_epsilon,
    ),
    *(
        Mutation(f"published.chien.{theorem}", "published.test_chien", better_guarantee)
        for theorem in (
            "theorem_3_2",
            "corollary_3_7",
            "corollary_3_8",
            "corollary_3_10",
            "theorem_3_11",
            "corollary_j_1",
        )
    ),
    Mutation("published.neel.theorem_9", "published.test_baselines", better_point_epsilon),
    Mutation("published.neel.theorem_28", "published.test_baselines", better_point_epsilon),
    Mutation(
        "published.full_batch.chien_theorem_p_2", "published.test_baselines", better_guarantee
    ),
    Mutation(
        "published.full_batch.chourasia_theorem_5_1", "published.test_baselines", better_guarantee
    ),
    Mutation("published.koloskova.group_privacy", "test_dp_sgd", better_point_epsilon),
]


def caught_by(mutation: Mutation) -> str | None:
    """Return the name of the first test that fails under ``mutation``, or None."""
    tests = importlib.import_module(f"tests.unit.app.accounting.{mutation.tests}")
    with mutated(mutation):
        for name, test in plain_tests(tests):
            try:
                test()
            except (AssertionError, pytest.fail.Exception):
                return f"{mutation.tests}.{name}"
    return None


def plain_tests(module: ModuleType) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the module's own test functions that need no arguments; hypothesis ones go last."""
    found = [
        (name, test)
        for name, test in vars(module).items()
        if name.startswith("test_") and inspect.isfunction(test)
    ]
    for searching in (False, True):
        for name, test in found:
            searches = hasattr(test, "hypothesis")
            needs = inspect.signature(test).parameters
            if searches is searching and (searches or not needs):
                yield name, test


@contextlib.contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Replace the formula wherever the package refers to it, and put it back afterwards."""
    module_name, *path = _split(mutation.target)
    owner = importlib.import_module(f"{PACKAGE}.{module_name}")
    for attribute in path[:-1]:
        owner = getattr(owner, attribute)
    honest = getattr(owner, path[-1])
    better = mutation.better

    @functools.wraps(honest)
    def optimistic(*args: object, **kwargs: object) -> object:
        return better(honest(*args, **kwargs))

    places = [(owner, path[-1])]
    for name, module in list(sys.modules.items()):
        if name.startswith((PACKAGE, "benchmarks.", "tests.unit.app.accounting.")):
            places += [(module, key) for key, value in vars(module).items() if value is honest]
    with pytest.MonkeyPatch.context() as patch:
        for place, key in places:
            patch.setattr(place, key, optimistic)
        yield


def _split(target: str) -> list[str]:
    parts = target.split(".")
    if parts[0] in ("chains", "histories", "published"):
        return [".".join(parts[:2]), *parts[2:]]
    return parts

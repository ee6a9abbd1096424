"""Projected noisy SGD with the noise of the whole lineage counted, training included.

``projected_noisy_sgd`` starts from the drift alone, as if training had added no noise. Where every
step of the lineage added N(0, noise_std^2 I), that noise hides the forgotten records as well: the
maps of the two worlds differ by kappa k eta M / b at steps over batches that still held k of them
and are equal at all others, so ``present_records`` bounds the last iterate over the whole history.
That bound is never above ``projected_noisy_sgd``'s without projection, and far below it for short
runs; with projection the smaller of both counts.

``ledger`` is the plain JSON of ``drift.DriftLedger``: everything is recomputed from it.

Guarantee: mu-GDP for the union of all records forgotten so far. Neighbouring relation: the
ledger's. Assumptions: 1. as ``projected_noisy_sgd``; 2. every step in the ledger added at least
the stated noise; 3. both worlds started from the same distribution.
Source: Expunge, from Chien et al. 2024, Algorithm 1, by shifted interpolation (Bok, Su & Altschuler
2024); the proof is in docs/guarantees.md.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.accounting import gaussian, projected_noisy_sgd
from app.accounting.drift import DriftLedger, Forget, Steps
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.noisy_chain import constant_mu
from app.accounting.present_records import minorant_mu
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import require_noise
from app.domain.errors import CalibrationError, ParameterError

NAME = "noisy_history"
VERSION = 1
MOST_STEPS = 2_000_000


def terms(neighbours: Neighbours) -> Terms:
    """Return the terms under one neighbouring relation.

    Raises:
        ParameterError: the relation is neither zero_out nor replacement.
    """
    base = projected_noisy_sgd.terms(neighbours)
    return replace(
        base,
        assumptions=(
            *base.assumptions,
            *enforced("every step of the lineage, training included, added the stated noise"),
        ),
    )


TERMS = terms(Neighbours.ZERO_OUT)


def account(*, ledger: Mapping[str, Any], noise_std: float) -> GaussianGuarantee:
    """Return the guarantee of the iterate at the end of ``ledger``.

    Raises:
        ParameterError: the ledger is malformed, empty or longer than two million steps, or
            noise_std is not above 0.
    """
    history = DriftLedger.from_json(ledger)
    noise_std = require_noise("noise_std", noise_std)
    if not 1 <= history.steps <= MOST_STEPS:
        raise ParameterError("ledger", f"1 to {MOST_STEPS} steps long")
    shifts = _shifts(history)
    mu = minorant_mu(
        start_distance=0.0,
        contractions=[history.recipe.contraction] * len(shifts),
        shifts=shifts,
        noise_stds=[noise_std] * len(shifts),
    )
    if history.recipe.radius is not None:
        mu = min(mu, _from_the_last_request(history, noise_std))
    return GaussianGuarantee(terms=terms(history.recipe.neighbours), mu=mu)


def calibrate(*, epsilon: float, delta: float, ledger: Mapping[str, Any]) -> float:
    """Return the smallest noise_std that reaches (epsilon, delta), rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: the conversion of the target did not converge.
    """
    target = gaussian.mu_of(epsilon=epsilon, delta=delta)
    return account(ledger=ledger, noise_std=1.0).mu / target * (1 + 1e-13)


def steps_needed(
    *, epsilon: float, delta: float, ledger: Mapping[str, Any], noise_std: float
) -> int:
    """Return the smallest number of further steps after which the target is met, at least 1.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: the history would become longer than two million steps.
    """
    history = DriftLedger.from_json(ledger)
    target = gaussian.mu_of(epsilon=epsilon, delta=delta)

    def meets(steps: int) -> bool:
        later = history.after_steps(steps)
        return account(ledger=later.to_json(), noise_std=noise_std).mu <= target

    low, high = 0, 1
    while not meets(high):
        low, high = high, 2 * high
        if history.steps + high > MOST_STEPS:
            raise CalibrationError(f"the history would become longer than {MOST_STEPS} steps")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _shifts(history: DriftLedger) -> list[float]:
    """Return, step by step, how far the maps of the two worlds differ."""
    recipe, shifts = history.recipe, list[float]()
    for index, event in enumerate(history.events):
        if isinstance(event, Steps):
            cycle = [recipe.shift * count for count in history.still_present(index)]
            start = len(shifts) % recipe.batches
            cycle = cycle[start:] + cycle[:start]
            whole, rest = divmod(event.count, recipe.batches)
            shifts += cycle * whole + cycle[:rest]
    return shifts


def _from_the_last_request(history: DriftLedger, noise_std: float) -> float:
    """Return the bound that starts from the drift at the last request, infinite without steps."""
    last = max(
        (index for index, event in enumerate(history.events) if isinstance(event, Forget)),
        default=-1,
    )
    before = DriftLedger(recipe=history.recipe, events=history.events[: last + 1])
    steps = history.steps - before.steps
    if steps == 0:
        return float("inf")
    return constant_mu(
        start_distance=before.drift(),
        contraction=history.recipe.contraction,
        shift=0.0,
        noise_std=noise_std,
        steps=steps,
    )

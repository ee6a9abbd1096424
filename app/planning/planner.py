"""From a policy to a plan: every mechanism is asked for a quote, retraining included.

``auto`` takes the offer with the fewest gradient computations; at equal cost the one with the
smaller epsilon; then the first by name. For a head, an offer that computes the minimum of its loss
comes before all others: none reaches that accuracy for less. Then come other exact ones, those
without a step, which leave the model as it is, and those that add noise. It never discards uploaded
weights: for a model that began with them, training from nothing is offered, and taken only where
the policy names it.
"""

import threading
from dataclasses import replace
from typing import Any

from app.accounting.guarantees import ExactGuarantee, GaussianGuarantee
from app.domain.errors import (
    CalibrationError,
    ExpungeError,
    MissingExtraError,
    ParameterError,
    PlanError,
)
from app.domain.plan import Plan
from app.domain.policy import AUTO, Policy
from app.planning.coverage import quoted_capacity
from app.planning.lineage import head_of
from app.planning.mechanisms.catalogue import MECHANISMS
from app.planning.mechanisms.mechanism import Deterministic, Needs
from app.planning.mechanisms.retraining import Retraining
from app.planning.quote import Declined, Quote, Quotes
from app.planning.shape import ModelShape
from app.runtime.processes.process_pool import ProcessPool

PROCESSES = 2
TIME_LIMIT_S = 30.0
_WAITING = 8  # each holds a thread of the API
_MEMORY_BYTES = 1 << 30
_OF_THEIR_OWN = {
    Needs.RIDGE_HEAD: "a ridge_head is solved, not trained by gradients",
    Needs.BOOSTED_TREES: "boosted_trees are grown, not trained by gradients",
    Needs.ENSEMBLE: "an ensemble leaves out the members concerned, or trains them anew",
}
"""Architectures that only their own mechanisms serve, and why no other does."""
_ARTICLES = {Needs.ENSEMBLE: "an ", Needs.BOOSTED_TREES: ""}


def quote_all(*, policy: Policy, shape: ModelShape) -> Quotes:
    """Ask every mechanism, and choose.

    Parameters that the policy fixes belong to the mechanism that it names; under ``auto`` a
    mechanism that does not have them declines.
    """
    if policy.mechanism not in (AUTO, *MECHANISMS):
        raise PlanError(f"mechanism must be {AUTO} or one of {', '.join(MECHANISMS)}")
    offers: list[Quote] = []
    declined: list[Declined] = []
    for name in MECHANISMS:
        try:
            quote = _quote(policy, shape, name)
            offers.append(replace(quote, capacity=quoted_capacity(quote, policy, shape)))
        except (PlanError, ParameterError, CalibrationError, MissingExtraError) as error:
            declined.append(Declined(name, str(error)))
    choosable = [
        offer
        for offer in offers
        if shape.trained_here or not MECHANISMS[offer.mechanism].trains_anew
    ]
    best = min(
        choosable,
        key=lambda quote: (
            _rank(quote) if shape.is_head else 0,
            quote.gradient_computations,
            quote.guarantee.epsilon(delta=policy.delta),
            quote.mechanism,
        ),
        default=None,
    )
    return Quotes(tuple(offers), tuple(declined), None if best is None else best.mechanism)


def make_plan(*, policy: Policy, shape: ModelShape) -> Plan:
    """Return the plan of one run, or raise ``PlanError``."""
    quote = _chosen_quote(policy, shape)
    predicted = {
        "epsilon": quote.guarantee.epsilon(delta=policy.delta),
        "certifying_gradients": quote.certifying_gradients,
        "gradient_computations": quote.gradient_computations,
        "noise_per_coordinate": quote.noise_per_coordinate,
    }
    if quote.surviving_information_bits is not None:
        predicted["surviving_information_bits"] = quote.surviving_information_bits
    if isinstance(quote.guarantee, GaussianGuarantee):
        predicted["mu"] = quote.guarantee.mu
    return Plan(
        mechanism=quote.mechanism,
        parameters=quote.parameters,
        **policy.target,
        budget_epochs=policy.budget_epochs or shape.recipe_epochs,
        predicted=predicted,
        settings=quote.settings,
        training=quote.training,
        history=None if quote.history is None else quote.history.to_json(),
    )


def _chosen_quote(policy: Policy, shape: ModelShape) -> Quote:
    if shape.is_spent:
        if not shape.trained_here:
            raise PlanError(
                "a result from these weights was thrown away for its score, and a second one would "
                "be chosen by it, which no certificate accounts for: bring others to another model"
            )
        policy = replace(policy, mechanism=Retraining.name, parameters={})
    if policy.mechanism in MECHANISMS:
        try:
            return _quote(policy, shape, policy.mechanism, of_run=True)
        except PlanError as error:
            raise PlanError(f"{policy.mechanism}: {error}") from error
    quotes = quote_all(policy=policy, shape=shape)
    quote = None if quotes.choice is None else quotes.offer(quotes.choice)
    if quote is None:
        reasons = "; ".join(f"{name}: {_reason(quotes, name)}" for name in sorted(MECHANISMS))
        raise PlanError(f"no plan satisfies the policy. {reasons}")
    return quote


def _reason(quotes: Quotes, name: str) -> str:
    """Return why a mechanism was not taken where none was."""
    offer = quotes.offer(name)
    if offer is None:
        return quotes.reason(name)
    return (
        f"it would meet the policy with {offer.gradient_computations:,.0f} gradients, but trains "
        "from nothing, without the uploaded weights; name it in the policy to have that"
    )


def _quote(policy: Policy, shape: ModelShape, name: str, *, of_run: bool = False) -> Quote:
    mechanism = MECHANISMS[name]
    if policy.adaptive and not mechanism.carries_adaptive:
        raise PlanError(
            "adaptive requests need a mechanism that also protects the records still present: "
            "set adaptive to false"
        )
    if policy.mechanism not in (AUTO, name):
        policy = replace(policy, parameters={})
    given = {
        Needs.RIDGE_HEAD: shape.ridge,
        Needs.ENSEMBLE: shape.ensemble,
        Needs.BOOSTED_TREES: shape.trees,
    }
    own = next((need for need, of in given.items() if of is not None), None)
    if own is not None and mechanism.needs is not own:
        raise PlanError(_OF_THEIR_OWN[own])
    if own is None and mechanism.needs in given:
        raise PlanError(f"needs {_ARTICLES.get(mechanism.needs, 'a ')}{mechanism.needs}")
    if mechanism.needs is Needs.LINEAR_HEAD:
        head_of(shape)
    try:
        return mechanism.quote_run(policy, shape) if of_run else mechanism.quote(policy, shape)
    except ExpungeError:
        raise
    except (ArithmeticError, ValueError) as error:
        raise PlanError("these numbers leave the range of floating point") from error


def _rank(quote: Quote) -> int:
    """Return where an offer for a head stands among others, whatever it costs."""
    if issubclass(MECHANISMS[quote.mechanism], Deterministic):
        return 0
    if isinstance(quote.guarantee, ExactGuarantee):
        return 1
    return 2 if quote.gradient_computations == 0 else 3


class Planners:
    """Makes plans for waiting callers, in separate processes, each within limits.

    Every method raises ``OverloadedError`` where too many calls wait, the caller has left or the
    service stops, and ``TooCostlyError`` where one takes more than it may.
    """

    def __init__(self) -> None:
        self._pool = ProcessPool(
            "planning",
            size=PROCESSES,
            waiting=_WAITING,
            time_limit_s=TIME_LIMIT_S,
            memory_bytes=_MEMORY_BYTES,
            preload=__name__,
        )

    def plan(
        self, *, policy: Policy, shape: ModelShape, left: threading.Event | None = None
    ) -> Plan:
        """Return the plan of one run; ``left`` is set when the caller does not wait any more."""
        return self._pool.call(left, make_plan, policy=policy, shape=shape)

    def quotes(
        self, *, policy: Policy, shape: ModelShape, left: threading.Event | None = None
    ) -> dict[str, Any]:
        """Return every mechanism's answer as plain JSON values; arguments are those of ``plan``."""
        return self._pool.call(left, _described, policy=policy, shape=shape)

    def close(self) -> None:
        """End all planning for good."""
        self._pool.close()


def _described(*, policy: Policy, shape: ModelShape) -> dict[str, Any]:
    return quote_all(policy=policy, shape=shape).describe(delta=policy.delta)

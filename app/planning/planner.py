"""From a policy to a plan: every mechanism is asked for a quote, retraining included.

``auto`` takes the offer with the fewest gradient computations; at equal cost the one with the
smaller epsilon; then the first by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from app.accounting import (
    delete_to_descent,
    dp_sgd,
    gradient_clipping,
    langevin_unlearning,
    model_clipping,
    noisy_gd_convex,
    noisy_gd_nonconvex,
    output_perturbation,
    projected_noisy_sgd,
    retraining,
    tracked_release,
)
from app.accounting.guarantees import GaussianGuarantee
from app.domain.errors import CalibrationError, ExpungeError, ParameterError, PlanError
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.planning.any_start import (
    quote_gradient_clipping,
    quote_model_clipping,
    quote_output_perturbation,
)
from app.planning.convex import (
    quote_delete_to_descent,
    quote_langevin_unlearning,
    quote_projected_noisy_sgd,
    quote_tracked_release,
)
from app.planning.noisy_descent import quote_noisy_gd_convex, quote_noisy_gd_nonconvex
from app.planning.others import quote_dp_sgd, quote_private_retraining, quote_retraining
from app.planning.quote import Declined, Quote, Quotes
from app.planning.shape import ModelShape

AUTO = "auto"

# Those that protect the records still present, so that requests may depend on earlier releases.
_CARRY_ADAPTIVE = frozenset({noisy_gd_convex.NAME})

_QUOTE: Mapping[str, Callable[[Policy, ModelShape], Quote]] = {
    gradient_clipping.NAME: quote_gradient_clipping,
    model_clipping.NAME: quote_model_clipping,
    output_perturbation.NAME: quote_output_perturbation,
    tracked_release.NAME: quote_tracked_release,
    delete_to_descent.NAME: quote_delete_to_descent,
    langevin_unlearning.NAME: quote_langevin_unlearning,
    projected_noisy_sgd.NAME: quote_projected_noisy_sgd,
    noisy_gd_convex.NAME: quote_noisy_gd_convex,
    noisy_gd_nonconvex.NAME: quote_noisy_gd_nonconvex,
    dp_sgd.NAME: quote_dp_sgd,
    retraining.NAME: quote_retraining,
}


def quote_all(*, policy: Policy, shape: ModelShape) -> Quotes:
    """Ask every mechanism, and choose.

    Parameters that the policy fixes belong to the mechanism that it names; under ``auto`` a
    mechanism that does not have them declines.

    Raises:
        PlanError: the policy names an unknown mechanism.
    """
    if policy.mechanism not in (AUTO, *_QUOTE):
        raise PlanError(f"mechanism must be {AUTO} or one of {', '.join(_QUOTE)}")
    offers: list[Quote] = []
    declined: list[Declined] = []
    for name in _QUOTE:
        try:
            offers.append(_quote(policy, shape, name))
        except (PlanError, ParameterError, CalibrationError) as error:
            declined.append(Declined(name, str(error)))
    return Quotes(tuple(offers), tuple(declined), _choose(policy, offers))


def make_plan(*, policy: Policy, shape: ModelShape) -> Plan:
    """Return the plan of one run.

    Raises:
        PlanError: no mechanism that the workers can run satisfies the policy; it says why.
    """
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
        epsilon=policy.epsilon,
        delta=policy.delta,
        budget_epochs=policy.budget_epochs or shape.recipe_epochs,
        predicted=predicted,
        settings=quote.settings,
        history=None if quote.history is None else quote.history.to_json(),
    )


def _chosen_quote(policy: Policy, shape: ModelShape) -> Quote:
    if policy.mechanism == dp_sgd.NAME and shape.dp_training is not None:
        return _private_quote(policy, shape)
    if policy.mechanism in _QUOTE:
        return _quote(policy, shape, policy.mechanism)
    quotes = quote_all(policy=policy, shape=shape)
    quote = None if quotes.choice is None else quotes.offer(quotes.choice)
    if quote is None:
        reasons = "; ".join(f"{name}: {quotes.reason(name)}" for name in sorted(_QUOTE))
        raise PlanError(f"no plan satisfies the policy. {reasons}")
    return quote


def _private_quote(policy: Policy, shape: ModelShape) -> Quote:
    """Quote no step while the group budget lasts, then a new training with the same privacy."""
    try:
        return _quote(policy, shape, dp_sgd.NAME)
    except PlanError:
        if policy.adaptive:
            raise
        return quote_private_retraining(policy, shape)


def _quote(policy: Policy, shape: ModelShape, name: str) -> Quote:
    if policy.adaptive and name not in _CARRY_ADAPTIVE:
        raise PlanError(
            "adaptive requests need a mechanism that also protects the records still present: "
            "set adaptive to false"
        )
    if policy.mechanism not in (AUTO, name):
        policy = replace(policy, parameters={})
    try:
        return _QUOTE[name](policy, shape)
    except ExpungeError:
        raise
    except (ArithmeticError, ValueError) as error:
        raise PlanError("these numbers leave the range of floating point") from error


def _choose(policy: Policy, offers: list[Quote]) -> str | None:
    best = min(
        offers,
        key=lambda quote: (
            quote.gradient_computations,
            quote.guarantee.epsilon(delta=policy.delta),
            quote.mechanism,
        ),
        default=None,
    )
    return None if best is None else best.mechanism

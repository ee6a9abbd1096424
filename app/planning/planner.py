"""From a policy to a plan: every mechanism is asked for a quote, retraining included.

``auto`` takes the offer with the fewest gradient computations; at equal cost the one with the
smaller epsilon; then the first by name.
"""

from dataclasses import replace

from app.accounting.guarantees import GaussianGuarantee
from app.domain.errors import CalibrationError, ExpungeError, ParameterError, PlanError
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.planning.lineage import head_of
from app.planning.mechanisms.catalogue import MECHANISMS
from app.planning.mechanisms.mechanism import Needs
from app.planning.quote import Declined, Quote, Quotes
from app.planning.shape import ModelShape

AUTO = "auto"


def quote_all(*, policy: Policy, shape: ModelShape) -> Quotes:
    """Ask every mechanism, and choose.

    Parameters that the policy fixes belong to the mechanism that it names; under ``auto`` a
    mechanism that does not have them declines.

    Raises:
        PlanError: the policy names an unknown mechanism.
    """
    if policy.mechanism not in (AUTO, *MECHANISMS):
        raise PlanError(f"mechanism must be {AUTO} or one of {', '.join(MECHANISMS)}")
    offers: list[Quote] = []
    declined: list[Declined] = []
    for name in MECHANISMS:
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
        training=quote.training,
        history=None if quote.history is None else quote.history.to_json(),
    )


def _chosen_quote(policy: Policy, shape: ModelShape) -> Quote:
    if policy.mechanism in MECHANISMS:
        return _quote(policy, shape, policy.mechanism, of_run=True)
    quotes = quote_all(policy=policy, shape=shape)
    quote = None if quotes.choice is None else quotes.offer(quotes.choice)
    if quote is None:
        reasons = "; ".join(f"{name}: {quotes.reason(name)}" for name in sorted(MECHANISMS))
        raise PlanError(f"no plan satisfies the policy. {reasons}")
    return quote


def _quote(policy: Policy, shape: ModelShape, name: str, *, of_run: bool = False) -> Quote:
    mechanism = MECHANISMS[name]
    if policy.adaptive and not mechanism.carries_adaptive:
        raise PlanError(
            "adaptive requests need a mechanism that also protects the records still present: "
            "set adaptive to false"
        )
    if policy.mechanism not in (AUTO, name):
        policy = replace(policy, parameters={})
    if mechanism.needs is Needs.LINEAR_HEAD:
        head_of(shape)
    try:
        return mechanism.quote_run(policy, shape) if of_run else mechanism.quote(policy, shape)
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

"""Commands that compute guarantees without a service."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

from app.accounting import catalogue as published
from app.accounting.guarantees import GaussianGuarantee, PointGuarantee
from app.cli.options import option, whole_numbers
from app.cli.output import conclude, say
from app.client.client import ExpungeClient
from app.client.configured import configured_client
from app.domain.architectures import ArchitectureSpec
from app.domain.errors import InvalidInputError, PlanError
from app.domain.policy import AUTO, Policy
from app.domain.scores import metric_in_words
from app.domain.states import arithmetic_s
from app.domain.tasks import catalogue
from app.planning.ensembles import EnsembleCost, costs_of, with_measured
from app.planning.mechanisms import catalogue as mechanisms
from app.planning.planner import quote_all
from app.planning.shape import ModelShape, TreesShape

Parameters = Annotated[
    list[str] | None,
    option(
        "A parameter, NAME=VALUE: a number, a word, a JSON list or object; may be repeated.",
        "--param",
    ),
]


def account(
    *,
    mechanism: Annotated[str, option("Its name, as in docs/guarantees.md.")],
    param: Parameters = None,
    delta: Annotated[float, option("Report epsilon at this delta.")] = 1e-5,
) -> None:
    """Compute the guarantee of a mechanism, or of a paper's bound, with the given parameters.

    Other computations are gaussian_mu, gaussian_epsilon, gaussian_delta, chain_mu, present_mu,
    worst_case_drift, history_drift and model_clipping_steps.
    """
    parameters = parsed("--param", param)
    if mechanism in mechanisms.MECHANISMS:
        guarantee = mechanisms.account(mechanism, parameters)
    elif mechanism in published.PUBLISHED:
        guarantee = published.account(mechanism, parameters)
    else:
        value = published.compute(mechanism, parameters)
        _print({"quantity": mechanism, "value": value})
        return
    if isinstance(guarantee, PointGuarantee):
        delta = guarantee.at_delta
    answer: dict[str, Any] = {
        "mechanism": mechanism,
        "epsilon": guarantee.epsilon(delta=delta),
        "delta": delta,
        "attacker_advantage": guarantee.advantage(),
        "neighbouring_relation": guarantee.terms.neighbours,
        "adaptive": guarantee.terms.adaptive,
        "direction": guarantee.terms.direction,
        "reference": guarantee.terms.reference,
        "source": guarantee.terms.source,
    }
    if isinstance(guarantee, GaussianGuarantee):
        answer["mu"] = guarantee.mu
        answer["surviving_information_bits"] = guarantee.surviving_information_bits()
    _print(answer)


def plan(
    *,
    epsilon: Annotated[float, option("The target epsilon.")] = 1.0,
    delta: Annotated[float, option("The target delta.")] = 1e-5,
    mechanism: Annotated[
        str, option("The only one to be shown; auto: all, and the choice.")
    ] = AUTO,
    param: Parameters = None,
    budget_epochs: Annotated[
        float | None, option("The most epochs that forgetting may take.")
    ] = None,
    records: Annotated[int, option("How many records remain to train on.", min=1)] = 50_000,
    batch_size: Annotated[int, option("Records per step.", min=1)] = 128,
    epochs: Annotated[float, option("Epochs of one training.")] = 50.0,
    model: Annotated[
        str | None, option("Ask the service about this model instead of --records and so on.")
    ] = None,
    members: Annotated[
        str | None,
        option(
            "Show instead what ensembles of so many members cost, 8,16,32,64: with --model, of "
            "its network, with what models of these sizes have measured."
        ),
    ] = None,
    persons_a_week: Annotated[float, option("With --members: how many persons ask a week.")] = 10.0,
    verbose: Annotated[
        bool, option("Show gradients, noise and parameters of each, too.", "--verbose")
    ] = False,
) -> None:
    """Quote every mechanism for a target: guarantee, seconds, disk, and the score where known.

    Seconds are what earlier runs took, and their spread; without --model only gradients are known.
    Mechanisms that do not apply give a reason. --param fixes parameters of the named --mechanism.
    """
    shape = ModelShape(retained=records, batch_size=batch_size, recipe_epochs=epochs)
    if members is not None:
        sizes = whole_numbers("--members", members)
        if model is None:
            costs = costs_of(shape, sizes, persons_a_week=persons_a_week)
        else:
            costs = _costs_for(model, sizes, persons_a_week=persons_a_week)
        show_ensembles(costs, persons_a_week=persons_a_week)
        conclude([asdict(cost) for cost in costs])
        return
    parameters = parsed("--param", param)
    for name, value in parameters.items():
        if not isinstance(value, int | float | list):
            raise InvalidInputError(f"--param {name}: expected a number or a list of numbers")
    policy = {
        "epsilon": epsilon,
        "delta": delta,
        "mechanism": mechanism,
        "parameters": parameters,
        "budget_epochs": budget_epochs,
    }
    if model is not None:
        with configured_client() as client:
            answer: Mapping[str, Any] = client.plans(policy, model=model)
    else:
        quotes = quote_all(policy=Policy(**policy), shape=shape)  # type: ignore[arg-type]
        answer = quotes.describe(delta=delta)
    for declined in answer["declined"]:
        if declined["mechanism"] == mechanism:
            raise PlanError(f"{mechanism}: {declined['reason']}")
    show_quotes(answer, named=mechanism, verbose=verbose or model is None)
    conclude(answer)


def _costs_for(name: str, sizes: Sequence[int], *, persons_a_week: float) -> list[EnsembleCost]:
    """Return what ensembles of a model's network cost on its dataset, and what was measured."""
    with configured_client() as client:
        model = client.model(name)
        models = client.models(dataset=model["dataset"])
        records = client.dataset(model["dataset"])["records"]
        recipe, architecture = model["recipe"], ArchitectureSpec.from_json(model["architecture"])
        shape = ModelShape(
            retained=round(records * (1 - recipe["held_out_fraction"])),
            batch_size=recipe["batch_size"],
            recipe_epochs=recipe["epochs"],
            trees=TreesShape.of(architecture, catalogue.from_json(model["task"])),
        )
        costs = with_measured(costs_of(shape, sizes, persons_a_week=persons_a_week), model, models)
        known = {each["name"]: each for each in [*models, model]}
        return [
            cost if cost.model is None else _timed(client, cost, known[cost.model], shape.retained)
            for cost in costs
        ]


def _timed(
    client: ExpungeClient, cost: EnsembleCost, model: Mapping[str, Any], records: int
) -> EnsembleCost:
    """Return the cost with what runs of its model took."""
    answer, named = client.plans(model["policy"], model=model["name"]), model["policy"]["mechanism"]
    chosen = answer["choice"] if named == AUTO else named
    quotes = {each["mechanism"]: each for each in answer["quotes"]}
    seconds = quotes[chosen]["seconds"] if chosen in quotes else None
    if seconds is None:
        return cost
    arithmetic, outweighs = arithmetic_s(model["latest_run"]["phase_seconds"]), None
    if cost.members == 1 and arithmetic > 0:
        rest = max(0.0, seconds["expected"] - arithmetic)
        outweighs = round(records * rest / arithmetic)
    return replace(cost, seconds=seconds["expected"], outweighs=outweighs)


def parsed(option: str, pairs: list[str] | None) -> dict[str, Any]:
    """Parse an option's NAME=VALUE pairs: a number, a JSON list or object, or else a word."""
    parameters: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name or not text:
            raise InvalidInputError(f"{option} {pair}: expected NAME=VALUE")
        parameters[name] = _value(text)
    return parameters


def _value(text: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
    try:
        number = float(text)
    except ValueError:
        try:
            return json.loads(text)
        except ValueError:
            return text
    return int(number) if number.is_integer() else number


def _print(answer: dict[str, Any]) -> None:
    conclude(answer)
    for name, number in answer.items():
        shown = f"{number:.7g}" if isinstance(number, float) else str(number)
        say(f"{name:<28} {shown}")


def show_quotes(answer: Mapping[str, Any], *, named: str = AUTO, verbose: bool = False) -> None:
    """Print the quotes, the choice, and the reasons of mechanisms that do not apply.

    Args:
        answer: of the service, or of the same function here.
        named: a mechanism whose quote alone is asked for.
        verbose: whether gradients, noise and parameters are shown, which say little by themselves.
    """
    for quote in answer["quotes"]:
        if named not in (AUTO, quote["mechanism"]):
            continue
        chosen = "  <- auto" if quote["mechanism"] == answer["choice"] else ""
        say(quote["mechanism"] + chosen, bold=True)
        facts = _facts(quote, verbose=verbose)
        say("    " + ", ".join(f"{name} {_short(fact)}" for name, fact in facts.items()))
        parameters = ", ".join(
            f"{name}={_short(value)}"
            for name, value in quote["parameters"].items()
            if not isinstance(value, Mapping)  # a history is for programs
        )
        if parameters and verbose:
            say("    " + parameters)
    reasons: dict[str, list[str]] = {}
    for declined in answer["declined"]:
        if named in (AUTO, declined["mechanism"]):
            reasons.setdefault(declined["reason"], []).append(declined["mechanism"])
    for reason, names in reasons.items():
        say(f"{', '.join(names)}: not offered, {reason}")


def _facts(quote: Mapping[str, Any], *, verbose: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"epsilon": quote["guarantee"]["epsilon"]}
    seconds = quote.get("seconds")
    if seconds is not None:
        spread = f"{seconds['least']:.2g} to {seconds['most']:.2g}"
        facts["seconds"] = f"{seconds['expected']:.2g} ({spread})"
    elif not verbose:
        facts["seconds"] = "not measured yet"
    disk = quote.get("disk")
    if disk is not None and disk["version_bytes"] is not None:
        size = f"{(disk['version_bytes'] + disk['records_bytes']) / 1e6:,.2f} MB"
        facts["disk"] = size if disk["measured"] else f"about {size}"
    if verbose:
        facts["gradients"] = quote["gradient_computations"]
        facts["noise per coordinate"] = quote["noise_per_coordinate"]
        facts["bits that survive"] = quote["surviving_information_bits"]
    facts["capacity"] = quote.get("capacity")
    if quote.get("held_out_score") is not None:
        facts[f"held out {metric_in_words(quote['held_out_metric'])}"] = quote["held_out_score"]
    return {name: fact for name, fact in facts.items() if fact is not None}


def show_ensembles(costs: Sequence[EnsembleCost], *, persons_a_week: float) -> None:
    """Print what ensembles cost, in gradients, beside one training of all their members."""
    header = ("members", "all anew", "one member", "by night", "by week", "out a day", "a week")
    rows = [
        (
            str(cost.members),
            *(f"{each:,.0f}" for each in (cost.anew, cost.singly, cost.nightly, cost.weekly)),
            *(f"{each:.1f}" for each in (cost.out_by_night, cost.out_by_week)),
        )
        for cost in costs
    ]
    for row in (header, *rows):
        say("".join(f"{cell:>15}" for cell in row))
    say(
        f"Gradients a week, with {persons_a_week:g} persons: by a training of all members for "
        "each, by one of the person's member, or left out and refilled every night or week; and "
        "how many members are out before each refill. A request that is met by leaving out costs "
        "no gradient. An ensemble's file is as large as its members together."
    )
    for cost in costs:
        if cost.size_bytes is not None:
            say(f"{cost.members} members: {_measured(cost)}")
    for cost in costs:
        if cost.outweighs is not None:
            say(
                f"Leaving out is worth it from about {cost.outweighs:,} records on: there training "
                f"{cost.model} anew takes longer than all else that a run does."
            )


def _measured(cost: EnsembleCost) -> str:
    size = f"{(cost.size_bytes or 0) / 1e6:,.1f} MB"
    if cost.seconds is not None:
        size += f", a request in {cost.seconds:.2g} s"
    if cost.model is None:
        return f"about {size}, and no model of this size was measured"
    if cost.metric is None:
        return f"{size}; {cost.model} has no held-out figure"
    said = f"{size}; {cost.model} has a held out {metric_in_words(cost.metric)} of {cost.score:.4g}"
    return ", ".join([said, *(f"{e['score']:.4g} with {e['members']} members" for e in cost.fewer)])


def _short(number: float | str | list[float]) -> str:
    if isinstance(number, list):
        return f"[{_short(number[0])} … {_short(number[-1])}]"
    if isinstance(number, float) and abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.5g}" if isinstance(number, float) else str(number)

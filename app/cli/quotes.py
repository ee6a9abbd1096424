"""Output of quotes."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.output import say
from app.domain.policy import AUTO
from app.domain.tasks.words import metric_in_words
from app.planning.ensembles import EnsembleCost


def show_quotes(answer: Mapping[str, Any], *, named: str = AUTO) -> None:
    """Print the quotes, the choice, and the reasons of mechanisms that do not apply.

    Args:
        answer: of the service, or of the same function here.
        named: a mechanism whose quote alone is asked for.
    """
    for quote in answer["quotes"]:
        if named not in (AUTO, quote["mechanism"]):
            continue
        chosen = "  <- auto" if quote["mechanism"] == answer["choice"] else ""
        say(quote["mechanism"] + chosen, bold=True)
        bits = quote["surviving_information_bits"]
        facts = {
            "epsilon": quote["guarantee"]["epsilon"],
            "gradients": quote["gradient_computations"],
            "noise per coordinate": quote["noise_per_coordinate"],
        } | ({} if bits is None else {"bits that survive": bits})
        if quote.get("capacity") is not None:
            facts["capacity"] = quote["capacity"]
        if quote.get("held_out_score") is not None:
            metric = metric_in_words(quote["held_out_metric"])
            facts[f"held out {metric}"] = quote["held_out_score"]
        say("    " + ", ".join(f"{name} {_short(fact)}" for name, fact in facts.items()))
        parameters = ", ".join(
            f"{name}={_short(value)}"
            for name, value in quote["parameters"].items()
            if not isinstance(value, Mapping)  # a history is for programs
        )
        if parameters:
            say("    " + parameters)
    reasons: dict[str, list[str]] = {}
    for declined in answer["declined"]:
        if named in (AUTO, declined["mechanism"]):
            reasons.setdefault(declined["reason"], []).append(declined["mechanism"])
    for reason, names in reasons.items():
        say(f"{', '.join(names)}: not offered, {reason}")


def show_ensembles(costs: Sequence[EnsembleCost], *, persons_a_week: float) -> None:
    """Print what ensembles cost, in gradients, beside one training of all their members."""
    header = ("members", "one person", "of a training", "a week singly", "by day", "by week")
    rows = [
        (
            str(cost.members),
            f"{cost.one:,.0f}",
            f"{cost.share:.1%}",
            *(f"{each:,.0f}" for each in (cost.singly, cost.by_day, cost.by_week)),
        )
        for cost in costs
    ]
    for row in (header, *rows):
        say("".join(f"{cell:>15}" for cell in row))
    say(
        f"Gradients, with {persons_a_week:g} persons a week: each by itself, or with those of a "
        "day or of a week (window_s). An ensemble's file is as large as its members together."
    )
    for cost in costs:
        if cost.size_bytes is not None:
            say(f"{cost.members} members: {_measured(cost)}")


def _measured(cost: EnsembleCost) -> str:
    size = f"{(cost.size_bytes or 0) / 1e6:,.1f} MB"
    if cost.model is None:
        return f"about {size}, and no model of this size was measured"
    if cost.metric is None:
        return f"{size}; {cost.model} has no held-out figure"
    return f"{size}; {cost.model} has a held out {metric_in_words(cost.metric)} of {cost.score:.4g}"


def _short(number: float | str | list[float]) -> str:
    if isinstance(number, list):
        return f"[{_short(number[0])} … {_short(number[-1])}]"
    if isinstance(number, float) and abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.5g}" if isinstance(number, float) else str(number)

"""Output of quotes."""

from collections.abc import Mapping
from typing import Any

import typer


def show_quotes(answer: Mapping[str, Any]) -> None:
    """Print the quotes, the choice, and the reasons of mechanisms that do not apply."""
    for quote in answer["quotes"]:
        chosen = "  <- auto" if quote["mechanism"] == answer["choice"] else ""
        typer.secho(quote["mechanism"] + chosen, bold=True)
        bits = quote["surviving_information_bits"]
        facts = {
            "epsilon": quote["guarantee"]["epsilon"],
            "gradients": quote["gradient_computations"],
            "noise per coordinate": quote["noise_per_coordinate"],
        } | ({} if bits is None else {"bits that survive": bits})
        typer.echo("    " + ", ".join(f"{name} {_short(fact)}" for name, fact in facts.items()))
        parameters = ", ".join(f"{k}={_short(v)}" for k, v in quote["parameters"].items())
        if parameters:
            typer.echo("    " + parameters)
    for declined in answer["declined"]:
        typer.echo(f"{declined['mechanism']}: declines, {declined['reason']}")


def _short(number: float | str | list[float]) -> str:
    if isinstance(number, list):
        return f"[{_short(number[0])} … {_short(number[-1])}]"
    return f"{number:.5g}" if isinstance(number, float) else str(number)

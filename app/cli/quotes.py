"""Quotes as a table."""

from typing import Any

from rich.console import Console
from rich.table import Table


def show_quotes(answer: dict[str, Any]) -> None:
    """Print offers, the choice and the reasons of those that declined."""
    console = Console()
    table = Table("mechanism", "epsilon", "gradients", "noise", "bits that survive", "parameters")
    for quote in answer["quotes"]:
        bits = quote["surviving_information_bits"]
        chosen = " *" if quote["mechanism"] == answer["choice"] else ""
        parameters = "\n".join(f"{k}={_short(v)}" for k, v in quote["parameters"].items())
        table.add_row(
            quote["mechanism"] + chosen,
            _short(quote["guarantee"]["epsilon"]),
            _short(quote["gradient_computations"]),
            _short(quote["noise_per_coordinate"]),
            "" if bits is None else _short(bits),
            parameters,
        )
    console.print(table)
    console.print("* what auto chooses among those that the workers run")
    for declined in answer["declined"]:
        console.print(f"{declined['mechanism']}: {declined['reason']}")


def _short(number: float | str) -> str:
    return f"{number:.5g}" if isinstance(number, float) else str(number)

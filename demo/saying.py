"""What the demo prints."""

import sys

from rich.console import Console

console = Console(highlight=False)


def step(title: str) -> None:
    """Say what comes next."""
    console.print(f"\n[bold]{title}[/]")


def require(condition: bool, statement: str) -> None:  # noqa: FBT001
    """Say that a statement holds, or end the demo with 1."""
    if not condition:
        console.print(f"[bold red]check failed:[/] {statement}")
        sys.exit(1)
    console.print(f"[green]ok[/] {statement}")

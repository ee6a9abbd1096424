"""Output of the findings of commands that search or compare the stores."""

from collections import Counter

import typer

from app.maintenance.findings import Finding, Verdict


class Tally(Counter[Verdict]):
    """Prints each finding and counts it by its verdict."""

    def report(self, finding: Finding) -> None:
        """Print one finding."""
        self[finding.verdict] += 1
        typer.echo(f"{finding.verdict}: {finding.where}: {finding.meaning}")

    def conclude(self, summary: str) -> None:
        """Print a summary; exit with 1 if there was a fault."""
        typer.echo(summary)
        if self[Verdict.FAULT]:
            typer.secho(f"{self[Verdict.FAULT]} fault(s)", fg="red", err=True)
            raise typer.Exit(1)
        typer.secho("no fault", fg="green")

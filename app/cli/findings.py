"""Output of the findings of commands that search or compare the stores."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

import typer

from app.cli.output import conclude, fail, say
from app.operations.findings import Finding, Verdict


class Tally(Counter[Verdict]):
    """Prints each finding and counts it by its verdict."""

    def __init__(self) -> None:
        super().__init__()
        self._findings: list[dict[str, object]] = []

    def report(self, finding: Finding, **more: object) -> None:
        """Print one finding; in JSON with more facts."""
        self[finding.verdict] += 1
        self._findings.append({**asdict(finding), **more})
        say(f"{finding.verdict}: {finding.where}: {finding.meaning}")

    def conclude(self, summary: str, facts: Mapping[str, object] | None = None) -> None:
        """Print a summary, in JSON with more facts; exit with 1 if there was a fault."""
        say(summary)
        conclude({"findings": self._findings, "faults": self[Verdict.FAULT], **(facts or {})})
        end_with(self[Verdict.FAULT])


def end_with(faults: int) -> None:
    """Say how many faults there are; exit with 1 if there is any."""
    if faults:
        fail(f"{faults} fault(s)")
        raise typer.Exit(1)
    say("no fault", fg="green")

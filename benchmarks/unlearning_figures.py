"""What the runs of ``unlearning_vs_retraining`` amount to: means, errors, and the questions asked.

Errors are standard errors of the mean over the repeats; that of a difference adds in squares.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, Final

from benchmarks.unlearning_arms import OUR_CONTROL, OURS, RETRAINING, Arm

# Koloskova et al. 2025, Table 2, which has CIFAR-10 alone.
TARGETS: Final = {"cifar10": (0.30, 0.35, 0.40, 0.45, 0.50)}

Row = dict[str, Any]


def summary(rows: Sequence[Row], *, data: str) -> dict[str, Any]:
    """Return the rows with their means, the verdicts and the epochs to the paper's accuracies."""
    finished = [_finished(row) for row in rows]
    return {
        "rows": finished,
        "gradient_clipping_against_retraining": comparison(finished, RETRAINING),
        "gradient_clipping_against_random_start": comparison(finished, OUR_CONTROL),
        "epochs_to_accuracy": _epochs_to_accuracy(finished, TARGETS.get(data, ())),
    }


def comparison(rows: Sequence[Row], other: Arm) -> list[Row]:
    """Return, by budget, planned gradient clipping minus ``other``, and whether it is not worse."""
    ours, theirs = _of(rows, OURS), _of(rows, other)
    verdicts = []
    for budget in sorted(set(ours) & set(theirs)):
        difference = ours[budget]["mean"] - theirs[budget]["mean"]
        error = math.hypot(
            ours[budget]["standard_error"] or 0.0, theirs[budget]["standard_error"] or 0.0
        )
        verdicts.append(
            {
                "budget_epochs": budget,
                "difference": difference,
                "standard_error": error,
                "as_good_within_one_standard_error": difference >= -error,
            }
        )
    return verdicts


def show(figures: dict[str, Any]) -> None:
    """Print one data set's figures."""
    print(
        f"\n{figures['data']}: {figures['repeats_done']} repeats at most, {figures['wall_s']:.0f} s"
    )
    if figures["note"]:
        print(f"note: {figures['note']}")
    originals = figures["original_accuracies"]
    print(f"original, trained on everyone: {100 * fmean(originals):.1f} %")
    print(f"{'epochs':>6}  {'arm':44} {'epsilon':>8} {'steps':>5} {'accuracy % (repeats)':>20}")
    for row in figures["rows"]:
        repeats = len(row["accuracies"])
        error = math.nan if row["standard_error"] is None else 100 * row["standard_error"]
        print(
            f"{row['budget_epochs']:6g}  {name_of(row):44} {row['epsilon']:8.3f} "
            f"{row['noisy_steps']:5} {100 * row['mean']:7.2f} ± {error:.2f} ({repeats})"
        )
    for other in ("retraining", "random_start"):
        print(f"gradient clipping (planned) minus {other.replace('_', ' ')}, percentage points:")
        for verdict in figures[f"gradient_clipping_against_{other}"]:
            print(
                f"{verdict['budget_epochs']:6g}  {100 * verdict['difference']:+.2f} "
                f"± {100 * verdict['standard_error']:.2f}  "
                f"{'ok' if verdict['as_good_within_one_standard_error'] else 'WORSE'}"
            )
    reached = figures["epochs_to_accuracy"]
    if reached["targets"]:
        print(f"epochs to {', '.join(f'{100 * goal:.0f} %' for goal in reached['targets'])}:")
    for row in reached["epochs"]:
        print(f"{'':8}{name_of(row):44} {row['epochs']}")


def name_of(row: Row) -> str:
    """Return a row's name for readers."""
    name = str(row["method"]).replace("_", " ")
    if row["method"] == RETRAINING.method:
        return name
    return f"{name}, {row['settings']}{', random start' if row['control'] else ''}"


def _finished(row: Row) -> Row:
    accuracies = row["accuracies"]
    several = len(accuracies) > 1
    curves = zip(*row["by_epoch"], strict=True)
    kept = {name: value for name, value in row.items() if name != "by_epoch"}
    return {
        **kept,
        "mean": fmean(accuracies),
        "standard_error": stdev(accuracies) / math.sqrt(len(accuracies)) if several else None,
        "mean_by_epoch": [fmean(accuracy) for accuracy in curves],
    }


def _epochs_to_accuracy(rows: Sequence[Row], targets: Sequence[float]) -> Row:
    return {
        "how": "first whole epoch at which the mean accuracy within the longest-budget run, whose "
        "schedule spans the whole budget, reaches the target; null: not reached",
        "targets": list(targets),
        "epochs": [
            {**_arm(row), "epochs": [_first(row["mean_by_epoch"], goal) for goal in targets]}
            for row in rows
            if row["mean_by_epoch"] and targets
        ],
    }


def _arm(row: Row) -> Row:
    return {name: row[name] for name in ("method", "settings", "control")}


def _of(rows: Sequence[Row], arm: Arm) -> dict[float, Row]:
    return {row["budget_epochs"]: row for row in rows if Arm(**_arm(row)) == arm}


def _first(curve: Sequence[float], goal: float) -> int | None:
    return next((epoch for epoch, mean in enumerate(curve, start=1) if mean >= goal), None)

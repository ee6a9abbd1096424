"""What the runs of ``unlearning_vs_retraining`` amount to: means, errors, and the questions asked.

Errors are standard errors of the mean over the repeats; that of a difference adds in squares.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from matplotlib.axes import Axes

from benchmarks import harness
from benchmarks.unlearning_case import OUR_CONTROL, OURS, RETRAINING, Arm

_TITLES: Final = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "8 x 8 digits"}
_NOTE_WIDTH: Final = 48
_POINTS_UNDER_RETRAINING: Final = 6
_STYLES: Final = {
    "retraining": ("k", "o"),
    "gradient_clipping": ("C0", "s"),
    "model_clipping": ("C1", "^"),
    "output_perturbation": ("C3", "v"),
}

Row = dict[str, Any]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the rows with their means, and the verdicts."""
    finished = [_finished(row) for row in rows]
    return {
        "rows": finished,
        "gradient_clipping_against_retraining": comparison(finished, RETRAINING),
        "gradient_clipping_against_random_start": comparison(finished, OUR_CONTROL),
    }


def comparison(rows: Sequence[Row], other: Arm) -> list[Row]:
    """Return, by budget, gradient clipping minus ``other``, and whether it is not worse."""
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
        print(f"gradient clipping minus {other.replace('_', ' ')}, percentage points:")
        for verdict in figures[f"gradient_clipping_against_{other}"]:
            print(
                f"{verdict['budget_epochs']:6g}  {100 * verdict['difference']:+.2f} "
                f"± {100 * verdict['standard_error']:.2f}  "
                f"{'ok' if verdict['as_good_within_one_standard_error'] else 'WORSE'}"
            )


def name_of(row: Row) -> str:
    """Return a row's name for readers."""
    name = str(row["method"]).replace("_", " ")
    if row["method"] == RETRAINING.method:
        return name
    return f"{name}{', random start' if row['control'] else ''}"


def _finished(row: Row) -> Row:
    accuracies = row["accuracies"]
    several = len(accuracies) > 1
    return {
        **row,
        "mean": fmean(accuracies),
        "standard_error": stdev(accuracies) / math.sqrt(len(accuracies)) if several else None,
    }


def _of(rows: Sequence[Row], arm: Arm) -> dict[float, Row]:
    return {row["budget_epochs"]: row for row in rows if Arm(row["method"], row["control"]) == arm}


def draw(figures: Mapping[str, Any], path: Path) -> Path:
    """Draw accuracy against budget, a column for each data set, and return the path."""
    columns = len(figures)
    with harness.picture(path, (6.3 * columns, 5.6), columns=columns) as (_, grid):
        for axis, (name, result) in zip(grid[0], figures.items(), strict=True):
            _panel(axis, result)
            axis.set_title(f"{_TITLES[name]}: (1, 1e-5)")
            axis.set_ylabel("test accuracy, %")
            if result["note"]:
                note = textwrap.fill(result["note"], _NOTE_WIDTH)
                axis.text(0.02, 0.97, note, transform=axis.transAxes, size=8, va="top")
    return path


def _panel(axis: Axes, result: Mapping[str, Any]) -> None:
    lines: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        lines.setdefault((row["method"], row["control"]), []).append(row)
    for number, ((method, control), rows) in enumerate(lines.items()):
        colour, marker = _STYLES[method]
        # Lines that lie on each other stay apart by a little.
        shift = 1 + 0.012 * (number - len(lines) / 2)
        axis.errorbar(
            [row["budget_epochs"] * shift for row in rows],
            [100 * row["mean"] for row in rows],
            yerr=[100 * (row["standard_error"] or 0) for row in rows],
            color=colour,
            marker=marker,
            linestyle="--" if control else "-",
            markerfacecolor="white" if control else colour,
            capsize=3,
            label=name_of(rows[0]),
        )
    budgets = sorted({row["budget_epochs"] for row in result["rows"]})
    axis.set(xscale="log", xlabel="budget, epochs of the retained pictures")
    axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axis.minorticks_off()
    _keep_low_points_outside(axis, result, list(lines.values()))
    counts = sorted({len(row["accuracies"]) for rows in lines.values() for row in rows})
    repeats = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    axis.legend(
        fontsize=8.5,
        title_fontsize=8.5,
        ncols=2,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        title=f"mean and standard error, {repeats} repeats",
    )


def _keep_low_points_outside(
    axis: Axes, result: Mapping[str, Any], lines: list[list[Mapping[str, Any]]]
) -> None:
    """Cut the axis a little under retraining; write the value of a point further down."""
    retraining = [row for row in result["rows"] if row["method"] == RETRAINING.method]
    bottom = 100 * min(row["mean"] for row in retraining) - _POINTS_UNDER_RETRAINING
    axis.set_ylim(bottom=bottom)
    for row in (row for rows in lines for row in rows if 100 * row["mean"] < bottom):
        axis.annotate(
            f"{100 * row['mean']:.0f} % ↓",
            (row["budget_epochs"], bottom),
            xytext=(3, 4),
            textcoords="offset points",
            color=_STYLES[row["method"]][0],
            size=9,
        )

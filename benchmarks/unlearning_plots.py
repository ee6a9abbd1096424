"""The plot of ``unlearning_vs_retraining``: accuracy against budget, one row a data set."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes

from benchmarks import harness
from benchmarks.unlearning_arms import PLANNED, PUBLISHED, RETRAINING

_TITLES: Final = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "8 x 8 digits"}
_NOTE_WIDTH: Final = 48
_POINTS_UNDER_RETRAINING: Final = 6
_SETTINGS: Final = {
    PLANNED: "true (1, 1e-5), our planning",
    PUBLISHED: "the paper's settings, at their true ε",
}
_STYLES: Final = {
    "retraining": ("k", "o"),
    "gradient_clipping": ("C0", "s"),
    "model_clipping": ("C1", "^"),
    "output_perturbation": ("C3", "v"),
}


def draw(figures: Mapping[str, Any], path: Path) -> Path:
    """Draw every data set in ``figures`` and return the path."""
    columns = len(_SETTINGS)
    size = (6.3 * columns, 5.6 * len(figures))
    with harness.picture(path, size, len(figures), columns, sharey="row") as (_, axes):
        for row, (name, result) in zip(axes, figures.items(), strict=True):
            for axis, settings in zip(row, _SETTINGS, strict=True):
                _panel(axis, result, settings)
                axis.set_title(f"{_TITLES[name]}: {_SETTINGS[settings]}")
            row[0].set_ylabel("test accuracy, %")
            if result["note"]:
                note = textwrap.fill(result["note"], _NOTE_WIDTH)
                row[0].text(0.02, 0.97, note, transform=row[0].transAxes, size=8, va="top")
    return path


def _panel(axis: Axes, result: Mapping[str, Any], settings: str) -> None:
    lines: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        if row["settings"] == settings or row["method"] == RETRAINING.method:
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
            label=_label(method, rows, control=control),
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


def _label(method: str, rows: list[Mapping[str, Any]], *, control: bool) -> str:
    name = method.replace("_", " ")
    if method == RETRAINING.method:
        return name
    if control:
        return f"random start beside {name}"
    lowest, highest = min(row["epsilon"] for row in rows), max(row["epsilon"] for row in rows)
    worth = f"{lowest:.3g}" if highest < 1.01 * lowest else f"{lowest:.3g} to {highest:.3g}"
    return f"{name}, ε = {worth}"

"""The plots of the convex benchmarks."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes

from benchmarks import harness

_LEAST: Final = 100  # where a logarithmic axis puts a cost of nothing
_SOURCES: Final = {"published": ("--", "X", 10), "ours": ("-", "o", 6), "exact": (":", "s", 4)}
_COLOURS: Final = {
    "projected noisy SGD": "C0",
    "tracked release": "C3",
    "noisy gradient descent": "C5",
    "Delete-to-Descent": "C2",
    "Langevin unlearning": "C1",
    "retraining": "k",
}

_FILLINGS: Final = {
    "b = 32": "white",
    "b = 512": "lightpink",
    "0.007": "white",
    "least σ": "white",
    "1 epoch": "white",
    "steps": "white",
}

Row = dict[str, Any]


def draw_sequential(document: dict[str, Any], path: Path) -> Path:
    """Draw cost against epsilon, accuracy against cost at epsilon 1, and the release noise."""
    with harness.picture(path, (17, 7), columns=3, bottom=0.2) as (figure, grid):
        axes = grid[0]
        rows = [row for row in document["rows"] if row["neighbours"] != "zero_out"]
        rows.sort(key=lambda row: list(_SOURCES).index(row["source"]))
        shown = [row for row in rows if not _is_control(row)]
        for name, group in _grouped(shown, "source", "method"):
            _cost_curve(axes[0], name, group)
        axes[0].set(xscale="log", yscale="log", xlabel="ε at δ = 1/n")
        axes[0].set(ylabel="per-record gradients, all requests")
        axes[0].set_title("cost")
        for row in rows:
            if row["epsilon"] == 1.0:
                _point(axes[1], row)
        axes[1].set(xscale="log", xlabel="per-record gradients, all requests")
        axes[1].set(ylabel="mean test accuracy after a request")
        axes[1].margins(x=0.12)
        axes[1].set_title("accuracy against cost at ε = 1")
        _noise_curve(axes[2], document["release_noise"])
        axes[2].set_title("tracked release at ε = 1: what its noise costs")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.suptitle(
            f"{document['requests']} requests in a row, {document['data']}, "
            "neighbouring relation: replacement"
        )
        figure.legend(handles, labels, loc="lower center", ncols=3, fontsize=10)
    return path


def draw_multiclass(document: dict[str, Any], path: Path) -> Path:
    """Draw, for each case, accuracy against cost and against release noise."""
    cases = document["cases"]
    size = (6.5 * len(cases), 11)
    with harness.picture(path, size, 2, len(cases), bottom=0.07) as (figure, axes):
        for column, case in enumerate(cases):
            _score_curves(axes[0][column], case["rows"])
            axes[0][column].set_title(
                f"{case['case']}, n = {case['records']}, λ = {case['weight_decay']:g}"
            )
            _noise_curve(axes[1][column], case["release_noise"])
            axes[1][column].set_title("tracked release at ε = 1: what its noise costs")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.suptitle(
            f"{document['requests']} requests for {document['records_per_request']} records each, "
            f"{document['data']}, ten classes"
        )
        figure.legend(handles, labels, loc="lower center", ncols=2, fontsize=10)
    return path


def _score_curves(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw one method's targets as a line, and retraining's budgets."""
    for (_, method, relation), group in _grouped(rows, "source", "method", "neighbours"):
        if group[0]["source"] == "exact":
            continue
        line = "--" if relation == "replacement" else "-"
        axis.errorbar(
            [row["gradients"] for row in group],
            [row["mean_accuracy"] for row in group],
            yerr=[row["mean_accuracy_std"] for row in group],
            fmt=f"{line}o",
            color=_colour(method),
            capsize=3,
            label=f"{method}, {relation.replace('_', ' ')}",
        )
        if line == "-":
            _mark_targets(axis, group)
    exact = sorted(
        (row for row in rows if row["source"] == "exact" and row["epsilon"] == rows[0]["epsilon"]),
        key=lambda row: row["gradients"],
    )
    axis.errorbar(
        [row["gradients"] for row in exact],
        [row["mean_accuracy"] for row in exact],
        yerr=[row["mean_accuracy_std"] for row in exact],
        fmt=":ks",
        capsize=3,
        label="retraining from zeros, long and short",
    )
    axis.set(xscale="log", xlabel="per-record gradients, all requests")
    axis.set(ylabel="mean test accuracy after a request")


def _mark_targets(axis: Axes, rows: Sequence[Row]) -> None:
    above = rows[0]["method"] == "tracked release"
    for row in rows:
        axis.annotate(
            f"ε = {row['epsilon']:g}",
            (row["gradients"], row["mean_accuracy"]),
            xytext=(0, 9 if above else -18),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=_colour(row["method"]),
        )


def _cost_curve(axis: Axes, name: tuple[Any, ...], rows: Sequence[Row]) -> None:
    source, method = name
    line, marker, size = _SOURCES[source]
    axis.plot(
        [row["epsilon"] for row in rows],
        [max(_LEAST, row["gradients"]) for row in rows],
        line + marker,
        color=_colour(method),
        markersize=size,
        markerfacecolor=_face(method),
        label=method if source == "exact" else f"{method} ({source})",
    )


def _point(axis: Axes, row: Row) -> None:
    _, marker, size = _SOURCES[row["source"]]
    axis.errorbar(
        max(_LEAST, row["gradients"]),
        row["mean_accuracy"],
        yerr=row["mean_accuracy_std"],
        fmt=marker,
        color=_colour(row["method"]),
        markersize=size,
        markerfacecolor=_face(row["method"]),
        capsize=3,
    )
    if _is_control(row):
        axis.annotate(
            row["method"].removeprefix("retraining, "),
            (row["gradients"], row["mean_accuracy"]),
            xytext=(-9, -4),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )


def _noise_curve(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw what requests in a row score, and what one release alone would."""
    noise = [row["release_noise_std"] for row in rows]
    axis.errorbar(
        noise,
        [row["mean_accuracy"] for row in rows],
        yerr=[row["mean_accuracy_std"] for row in rows],
        fmt="-oC3",
        capsize=3,
        label="mean over requests",
    )
    axis.plot(
        noise,
        [row["trained_accuracy"] - row["lost_to_noise"] for row in rows],
        "-vC7",
        label="one release of the trained head",
    )
    trained = rows[0]["trained_accuracy"]
    axis.axhline(trained, color="C7", linestyle=":", label="the trained head, no noise")
    axis.set(xscale="log", xlabel="release noise per coordinate", ylabel="mean test accuracy")
    axis.set_xticks(noise, [f"{value:g}" for value in noise])
    axis.minorticks_off()
    axis.legend(fontsize=9, loc="lower left")


def _grouped(rows: Iterable[Row], *keys: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.items())


def _is_control(row: Row) -> bool:
    """Say whether a row is retraining for a few steps only."""
    return row["source"] == "exact" and row["method"].endswith("steps")


def _colour(method: str) -> str:
    return next(colour for name, colour in _COLOURS.items() if method.startswith(name))


def _face(method: str) -> str:
    """Return the filling that tells the rows of one method apart."""
    filling = (end for end in _FILLINGS if method.endswith(end))
    return _FILLINGS.get(next(filling, ""), _colour(method))

"""The plots of docs/guarantees.md, drawn from the accountants alone."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from app.accounting import gradient_clipping, model_clipping, output_perturbation
from app.accounting.published import koloskova as bounds
from app.domain.errors import ParameterError
from benchmarks import harness
from benchmarks.calibration import calibrate, steps_needed

DELTA = 1e-5
EPSILONS = np.geomspace(0.05, 20, 40)


def draw(*, folder: Path, koloskova: dict[str, Any], chien: dict[str, Any]) -> list[Path]:
    """Draw all plots into ``folder`` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        noise_against_epsilon(folder / "noise-against-epsilon.png", koloskova),
        steps_against_noise(folder / "steps-against-noise.png", koloskova),
        sequential_requests(folder / "sequential-requests.png", chien),
    ]


def noise_against_epsilon(path: Path, koloskova: dict[str, Any]) -> Path:
    """Draw the noise that each accountant of the gradient-clipping chain asks for."""
    with harness.picture(path, (12, 5), columns=2) as (_, grid):
        axes = grid[0]
        names = ("initial_clip", "gradient_clip", "learning_rate", "weight_decay", "steps")
        _noise_curves(axes[0], dict(zip(names, (1.0, 10.0, 0.001, 0.0, 100), strict=True)))
        axes[0].set_title("no weight decay\nC0=1, C1=10, γ=0.001, T=100")
        _noise_curves(axes[1], dict(zip(names, (20.0, 10.0, 0.01, 50.0, 11), strict=True)))
        published = next(row for row in koloskova["gradient_clipping"] if row["C0"] == 20)
        axes[1].plot(1, published["sigma"], "kX", markersize=10, label="published, for ε = 1")
        axes[1].plot(
            published["true_epsilon"],
            published["sigma"],
            "k*",
            markersize=12,
            label="what it gives",
        )
        axes[1].set_title("weight decay\nC0=20, C1=10, γ=0.01, λ=50, T=11")
        for axis in axes:
            axis.set(xscale="log", yscale="log", xlabel="ε at δ = 1e-5", ylabel="noise a step, σ")
            axis.legend(fontsize=9, loc="upper right")
    return path


def steps_against_noise(path: Path, koloskova: dict[str, Any]) -> Path:
    """Draw the steps of model clipping against its noise, Theorem 4.2 and the sharper recursion."""
    with harness.picture(path, (7.5, 5)) as (_, grid):
        axis = grid[0][0]
        ratios = np.geomspace(0.35, 12, 60)
        for label, style, needed in (
            ("Theorem 4.2 (ε throughout)", "C1--", steps_needed),
            ("ours (ε_t grows with every step)", "C0-", model_clipping.steps_needed),
        ):
            start = {"initial_clip": 1.0, "model_clip": 1.0}
            steps = [
                needed(epsilon=1.0, delta=DELTA, noise_std=float(ratio), **start)
                for ratio in ratios
            ]
            axis.plot(ratios, steps, style, label=label)
        for row in koloskova["model_clipping"]:
            label = "published tables" if row["C2"] == 0.5 else None
            axis.plot(row["sigma"] / row["C2"], row["T"], "kX", label=label)
        axis.set(
            xscale="log",
            yscale="log",
            xlabel="noise over clip norm, σ / C2",
            ylabel="steps to (1, 1e-5)",
            title="model clipping: steps against noise",
        )
        axis.legend()
    return path


def sequential_requests(path: Path, chien: dict[str, Any]) -> Path:
    """Draw the epochs that 100 sequential requests take, published and ours."""
    sizes = sorted({row["batch_size"] for row in chien["requests"]})
    with harness.picture(path, (13, 4.6), columns=len(sizes)) as (figure, grid):
        axes = grid[0]
        for axis, size in zip(axes, sizes, strict=True):
            rows = [row for row in chien["requests"] if row["batch_size"] == size]
            noise = [row["sigma"] for row in rows]
            for key, label, style in (
                ("total_epochs", "published", "ko-"),
                ("our_epochs_replacement", "ours, replacement", "C0s-"),
                ("our_epochs_zero_out", "ours, zero out", "C2^-"),
            ):
                axis.plot(noise, [row[key] for row in rows], style, label=label)
            axis.set(
                xscale="log",
                yscale="log",
                xlabel="noise scale σ",
                title="full batch" if size > 10_000 else f"batches of {size}",
            )
        axes[0].set_ylabel("epochs, 100 requests")
        axes[0].legend(fontsize=9)
        figure.suptitle("100 sequential requests at (0.01, 1/n), MNIST 3 against 8")
    return path


def _noise_curves(axis: Axes, setting: dict[str, Any]) -> None:
    """Draw one panel; a theorem that does not reach an epsilon has no point there."""
    start = {"initial_clip": setting["initial_clip"]}
    for label, style, search, parameters in (
        (
            "output perturbation, classical",
            "C3:",
            partial(calibrate, bounds.classical_output_perturbation),
            start,
        ),
        ("output perturbation, exact", "C3-", output_perturbation.calibrate, start),
        ("Theorem 4.1", "C1-.", partial(calibrate, bounds.theorem_4_1), setting),
        (
            "Theorem A.9, best Rényi conversion",
            "C2--",
            partial(calibrate, bounds.theorem_a_9),
            setting,
        ),
        ("ours, exact", "C0-", gradient_clipping.calibrate, setting),
    ):
        noise = [_calibrated(search, float(epsilon), parameters) for epsilon in EPSILONS]
        if any(math.isfinite(value) for value in noise):
            axis.plot(EPSILONS, noise, style, label=label)


def _calibrated(search: Callable[..., float], epsilon: float, parameters: dict[str, Any]) -> float:
    try:
        return search(epsilon=epsilon, delta=DELTA, **parameters)
    except ParameterError:
        return math.nan

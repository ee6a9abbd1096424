"""The plots of docs/guarantees.md, drawn from the accountants alone."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.accounting import gradient_clipping, model_clipping, output_perturbation
from app.accounting.published import koloskova as bounds
from app.domain.errors import ParameterError
from benchmarks import harness
from benchmarks.calibration import calibrate, steps_needed

DELTA = 1e-5
EPSILONS = np.geomspace(0.05, 20, 40)
_SETTING = ("initial_clip", "gradient_clip", "learning_rate", "weight_decay", "steps")


def draw(*, folder: Path, koloskova: dict[str, Any], chien: dict[str, Any]) -> None:
    """Draw all plots into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    noise_against_epsilon(folder / "noise-against-epsilon.png", koloskova)
    steps_against_noise(folder / "steps-against-noise.png", koloskova)
    sequential_requests(folder / "sequential-requests.png", chien)


def noise_against_epsilon(path: Path, koloskova: dict[str, Any]) -> None:
    """Draw the noise that each accountant of the gradient-clipping chain asks for."""
    with harness.picture(path, (12, 5), columns=2) as (_, ((plain, decayed),)):
        _noise_curves(plain, (1.0, 10.0, 0.001, 0.0, 100))
        plain.set_title("no weight decay\nC0=1, C1=10, γ=0.001, T=100")
        _noise_curves(decayed, (20.0, 10.0, 0.01, 50.0, 11))
        row = next(row for row in koloskova["gradient_clipping"] if row["C0"] == 20)
        published, claimed, true = row["sigma"], 1, row["true_epsilon"]
        decayed.plot(claimed, published, "kX", markersize=10, label="published, for ε = 1")
        decayed.plot(true, published, "k*", markersize=12, label="what it gives")
        decayed.set_title("weight decay\nC0=20, C1=10, γ=0.01, λ=50, T=11")
        for axis in (plain, decayed):
            axis.set(xscale="log", yscale="log", xlabel="ε at δ = 1e-5", ylabel="noise a step, σ")
            axis.legend(fontsize=9, loc="upper right")


def steps_against_noise(path: Path, koloskova: dict[str, Any]) -> None:
    """Draw the steps of model clipping against its noise, Theorem 4.2 and the sharper recursion."""
    setting = {"epsilon": 1.0, "delta": DELTA, "initial_clip": 1.0, "model_clip": 1.0}
    ratios = np.geomspace(0.35, 12, 60)
    with harness.picture(path, (7.5, 5)) as (_, ((axis,),)):
        for label, style, needed in (
            ("Theorem 4.2 (ε throughout)", "C1--", steps_needed),
            ("ours (ε_t grows with every step)", "C0-", model_clipping.steps_needed),
        ):
            steps = [needed(**setting, noise_std=float(ratio)) for ratio in ratios]
            axis.plot(ratios, steps, style, label=label)
        for row in koloskova["model_clipping"]:
            label = "published tables" if row["C2"] == 0.5 else None
            axis.plot(row["sigma"] / row["C2"], row["T"], "kX", label=label)
        axis.set(xscale="log", yscale="log", xlabel="noise over clip norm, σ / C2")
        axis.set(ylabel="steps to (1, 1e-5)", title="model clipping: steps against noise")
        axis.legend()


def sequential_requests(path: Path, chien: dict[str, Any]) -> None:
    """Draw the epochs that 100 sequential requests take, published and ours."""
    sizes = sorted({row["batch_size"] for row in chien["requests"]})
    with harness.picture(path, (13, 4.6), columns=len(sizes)) as (figure, (axes,)):
        for axis, size in zip(axes, sizes, strict=True):
            rows = [row for row in chien["requests"] if row["batch_size"] == size]
            for key, label, style in (
                ("total_epochs", "published", "ko-"),
                ("our_epochs_replacement", "ours, replacement", "C0s-"),
                ("our_epochs_zero_out", "ours, zero out", "C2^-"),
            ):
                harness.plot(axis, rows, "sigma", key, style, label=label)
            axis.set(xscale="log", yscale="log", xlabel="noise scale σ")
            axis.set_title("full batch" if size > 10_000 else f"batches of {size}")
        axes[0].set_ylabel("epochs, 100 requests")
        axes[0].legend(fontsize=9)
        figure.suptitle("100 sequential requests at (0.01, 1/n), MNIST 3 against 8")


def _noise_curves(axis: Any, values: tuple[float, ...]) -> None:
    """Draw one panel; a theorem that does not reach an epsilon has no point there."""
    setting = dict(zip(_SETTING, values, strict=True))
    start = {"initial_clip": setting["initial_clip"]}
    classical = partial(calibrate, bounds.classical_output_perturbation)
    renyi = "Theorem A.9, best Rényi conversion"
    for label, style, search, parameters in (
        ("output perturbation, classical", "C3:", classical, start),
        ("output perturbation, exact", "C3-", output_perturbation.calibrate, start),
        ("Theorem 4.1", "C1-.", partial(calibrate, bounds.theorem_4_1), setting),
        (renyi, "C2--", partial(calibrate, bounds.theorem_a_9), setting),
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

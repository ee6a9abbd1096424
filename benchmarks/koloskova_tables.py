"""Koloskova et al. 2025, Tables 5 to 10: published noise, its worth, and what the target needs."""

import json
import math
from pathlib import Path
from typing import Any

from app.accounting import gaussian, gradient_clipping, model_clipping, output_perturbation
from app.accounting.chains import noisy_step
from app.accounting.published import koloskova
from benchmarks.calibration import calibrate, fewest, steps_needed

# Published noise has four to six digits; a claim is reproduced if it agrees to this.
TOLERANCE = 2e-4


def gradient_clipping_rows(published: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each gradient-clipping row with the authors' noise, its true epsilon and ours.

    The authors bounded the Renyi divergence of order alpha by alpha * 1, that is mu = sqrt(2).
    """
    epsilon, delta = published["target"]["epsilon"], published["target"]["delta"]
    rows = []
    for table in ("gradient_clipping_mnist", "gradient_clipping_cifar10"):
        for row in published[table]:
            setting = {
                "initial_clip": float(row["C0"]),
                "gradient_clip": float(row["C1"]),
                "learning_rate": float(row["gamma"]),
                "weight_decay": float(row["lam"]),
                "steps": row["T"],
            }
            unit = gradient_clipping.account(noise_std=1.0, **setting)
            reproduced = unit.mu / math.sqrt(2)
            worth = gradient_clipping.account(noise_std=row["sigma"], **setting).alone()
            needed = gradient_clipping.calibrate(epsilon=epsilon, delta=delta, **setting)
            rows.append(
                {
                    "table": table,
                    **row,
                    "sigma_with_their_bound": reproduced,
                    "reproduced": math.isclose(reproduced, row["sigma"], rel_tol=TOLERANCE),
                    "mu_of_published_sigma": worth.mu,
                    "true_epsilon": worth.epsilon(delta=delta),
                    "true_delta_at_target_epsilon": worth.delta(epsilon=epsilon),
                    "sigma_that_meets_target": needed,
                    "factor": needed / row["sigma"],
                    "steps_that_meet_target": steps_enough(
                        published["target"], {**setting, "noise_std": row["sigma"]}
                    ),
                }
            )
    return rows


def steps_enough(target: dict[str, float], setting: dict[str, Any]) -> int | None:
    """Return after how many steps a noise meets the target, by the coupling if need be.

    None where it does not within as many steps as the coupling is followed for.
    """

    def meets(steps: int) -> bool:
        account = gradient_clipping.account(**{**setting, "steps": steps}) if steps else None
        return account is not None and account.meets(**target)

    return fewest(meets) if meets(noisy_step.MOST_STEPS) else None


def model_clipping_rows(published: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each model-clipping row with the steps of Theorem 4.2 and of the sharper recursion."""
    rows = []
    for row in published["model_clipping"]:
        clips = {"initial_clip": 1.0, "model_clip": float(row["C2"])}
        setting = {**published["target"], **clips, "noise_std": float(row["sigma"])}
        ours = model_clipping.steps_needed(**setting)
        reproduced = {"steps_ours": ours, "reproduced": ours == row["T"]}
        rows.append({**row, "steps_of_theorem_4_2": steps_needed(**setting), **reproduced})
    return rows


def output_perturbation_rows(published: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each output-perturbation row with the classical formula and the exact noise."""
    rows = []
    for row in published["output_perturbation"]:
        setting = {**published["target"], "initial_clip": float(row["C0"])}
        classical = calibrate(koloskova.classical_output_perturbation, **setting)
        exact = output_perturbation.calibrate(**setting)
        rows.append(
            {
                **row,
                "sigma_with_their_bound": classical,
                "reproduced": math.isclose(classical, row["sigma"], rel_tol=TOLERANCE),
                "sigma_exact": exact,
                "factor": exact / row["sigma"],
            }
        )
    return rows


def tables(folder: Path) -> dict[str, Any]:
    """Return all of the paper's tables that concern accounting."""
    published = json.loads((folder / "koloskova-2025.json").read_text())
    target = published["target"]
    return {
        "target": target,
        "mu_of_target": gaussian.mu_of(epsilon=target["epsilon"], delta=target["delta"]),
        "gradient_clipping": gradient_clipping_rows(published),
        "model_clipping": model_clipping_rows(published),
        "output_perturbation": output_perturbation_rows(published),
    }

"""Reproduce the papers' tables with the authors' bounds and show ours beside them.

    python -m benchmarks.published_tables

reads benchmarks/published/*.json (or EXPUNGE_BENCH_PUBLISHED), prints every row, writes
benchmarks/results/published_tables.json and the plots under docs/images, and exits 1 where a row
cannot be reproduced.
"""

import os
from pathlib import Path
from typing import Any

from benchmarks import chien_tables, harness, koloskova_tables, plots

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"

COLUMNS = {
    "gradient_clipping": {
        "C0": "C0",
        "C1": "C1",
        "gamma": "gamma",
        "lam": "lambda",
        "T": "T",
        "sigma": "published sigma",
        "sigma_with_their_bound": "their bound",
        "true_epsilon": "true epsilon",
        "sigma_that_meets_target": "sigma for (1, 1e-5)",
        "factor": "factor",
        "steps_that_meet_target": "published sigma enough after",
        "reproduced": "reproduced",
    },
    "model_clipping": {
        "C2": "C2",
        "sigma": "sigma",
        "T": "published T",
        "steps_of_theorem_4_2": "Theorem 4.2",
        "steps_ours": "ours",
        "reproduced": "reproduced",
    },
    "output_perturbation": {
        "C0": "C0",
        "sigma": "published sigma",
        "sigma_with_their_bound": "their bound",
        "sigma_exact": "exact",
        "factor": "factor",
        "reproduced": "reproduced",
    },
    "requests": {
        "batch_size": "b",
        "sigma": "sigma",
        "total_epochs": "published epochs",
        "reproduced_total_epochs": "their bound",
        "first_request_epochs": "published first",
        "reproduced_first_request_epochs": "their bound, first",
        "our_epochs_replacement": "ours, replacement",
        "our_epochs_zero_out": "ours, zero out",
        "reproduced": "reproduced",
    },
    "one_epoch": {
        "batch_size": "b",
        "epsilon": "epsilon",
        "sigma": "published sigma",
        "sigma_with_their_bound": "their bound",
        "our_sigma": "ours, replacement",
        "our_sigma_with_training_noise": "ours, training noise counted",
        "reproduced": "reproduced",
    },
}
TITLES = {
    "gradient_clipping": "Koloskova et al. 2025, Tables 5 and 7: gradient clipping at (1, 1e-5)",
    "model_clipping": "Koloskova et al. 2025, Tables 6 and 8: model clipping at (1, 1e-5)",
    "output_perturbation": "Koloskova et al. 2025: output perturbation at (1, 1e-5)",
    "requests": "Chien et al. 2024, Figures 3c and 3d: 100 requests at (0.01, 1/n)",
    "one_epoch": "Chien et al. 2024, Table 3 (MNIST): one epoch of unlearning at (epsilon, 1/n)",
}


def published_folder() -> Path:
    """Return the folder of the papers' figures."""
    return Path(os.environ.get("EXPUNGE_BENCH_PUBLISHED", HERE / "published"))


def compute(folder: Path) -> dict[str, Any]:
    """Return every table, by paper."""
    return {"koloskova": koloskova_tables.tables(folder), "chien": chien_tables.tables(folder)}


def table(document: dict[str, Any]) -> str:
    """Return every row."""
    return "\n\n".join(
        f"{TITLES[name]}\n\n"
        + harness.table(
            " | ".join(columns.values()),
            ([_cell(row[key]) for key in columns] for row in paper[name]),
        )
        for paper in document.values()
        for name, columns in COLUMNS.items()
        if name in paper
    )


def met(document: dict[str, Any]) -> bool:
    """Say whether every row is reproduced."""
    tables = [paper[name] for paper in document.values() for name in COLUMNS if name in paper]
    return all(row["reproduced"] for rows in tables for row in rows)


def figure(document: dict[str, Any], _: Path) -> None:
    """Draw the plots of docs/guarantees.md."""
    plots.draw(folder=IMAGES, **document)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    harness.main(
        "published_tables",
        __doc__,
        lambda _: [compute(published_folder())],
        table=table,
        figure=figure,
        met=met,
    )

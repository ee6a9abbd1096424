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


def _rows(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {name: paper[name] for paper in document.values() for name in TITLES if name in paper}


def table(document: dict[str, Any]) -> str:
    """Return every row."""
    return "\n\n".join(
        f"{TITLES[name]}\n\n"
        + harness.table(" | ".join(rows[0]), (map(_cell, row.values()) for row in rows))
        for name, rows in _rows(document).items()
    )


def met(document: dict[str, Any]) -> bool:
    """Say whether every row is reproduced."""
    return all(row["reproduced"] for rows in _rows(document).values() for row in rows)


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

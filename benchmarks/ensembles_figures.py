"""The tables and the picture of ``benchmarks.ensembles``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import harness

_NAMES: Final = {
    "scratch": "MNIST, from scratch",
    "public": "MNIST, public weights",
    "pictures": "CIFAR-10, EfficientNet-Lite0 whole",
    "churn": "customers",
    "texts": "texts, LoRA",
}
_SISA: Final = (("SISA: Purchase", 4.6, 2.0), ("SISA: SVHN", 2.5, 2.0))

Document = dict[str, Any]


def table(document: Document) -> str:
    """Return a table of all cases, in Markdown."""
    head = "case | members | accuracy | after 100 are forgotten | one person | 100 at once"
    return harness.table(head, _cells(document))


def draw(document: Document, path: Path) -> Path:
    """Draw the points of accuracy that are lost against how much less a request costs."""
    with harness.picture(path, (8, 5)) as (_, axes):
        axis = axes[0][0]
        for number, (case, found) in enumerate(document.items()):
            rows = sorted(found["rows"], key=lambda row: row["members"])
            if not rows or rows[0]["members"] != 1:
                continue
            axis.plot(
                [1 / row["each"] for row in rows],
                [100 * (rows[0]["accuracy"] - row["accuracy"]) for row in rows],
                "o-",
                color=f"C{number}",
                label=_NAMES.get(case, case),
            )
        for (label, speed, lost), marker in zip(_SISA, "sD", strict=True):
            axis.plot(speed, lost, f"k{marker}", label=f"{label} (at most)")
        axis.axhline(2, color="grey", linestyle=":")
        axis.set(
            xscale="log",
            xlabel="gradients of retraining over those of one person's request",
            ylabel="points of accuracy lost",
            title="Ensembles of 1, 4, 8, 16 and 32 members",
        )
        axis.set_xticks([1, 2, 4, 8, 16, 32], labels=["1", "2", "4", "8", "16", "32"])
        axis.legend(fontsize=9)
    return path


def _cells(document: Document) -> Iterator[tuple[str, ...]]:
    for case, found in document.items():
        name = _NAMES.get(case, case)
        for row in sorted(found["rows"], key=lambda row: row["members"]):
            yield (
                name,
                str(row["members"]),
                f"{row['accuracy']:.2%}",
                "" if row["after"] is None else f"{row['after']:.2%}",
                f"{row['each']:.3f}",
                f"{row['together']:.2f}",
            )
        for rival in found["rivals"]:
            method = rival["method"].replace("_", " ")
            yield (name, method, "", f"{rival['accuracy']:.2%}", "", f"{rival['gradients']:.2f}")

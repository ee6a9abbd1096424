"""The tables and the picture of ``benchmarks.exact_heads``."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

_STYLE: Final = {"font.size": 11, "axes.grid": True, "grid.alpha": 0.3, "figure.dpi": 130}
_COLOURS: Final = {"ridge": "C0", "softmax": "C2", "tracked release": "C3"}
_LEAST_SECONDS: Final = 0.01  # where a logarithmic axis puts what took no time

Document = dict[str, Any]


def table(document: Document) -> str:
    """Return all tables, in Markdown."""
    return "\n".join(
        (
            f"{document['data']}: {document['records']:,} records, {document['tested']:,} tested; "
            f"one matrix product takes {document['product_s']:.2f} s on {document['threads']} "
            f"threads. {document['note']}",
            "",
            *_lines(
                "head | features | forgotten | requests | accuracy | seconds a request | "
                "in products | gradients a request | ",
                _head_cells(document["rows"]),
            ),
            "",
            *_lines(
                "network | pixels | seconds | pictures seen | accuracy",
                (
                    (
                        row["network"],
                        row["pixels"],
                        f"{row['seconds']:.1f}",
                        f"{row['gradients']:,}",
                        f"{row['accuracy']:.1%}",
                    )
                    for row in document["networks"]
                ),
            ),
            "",
            *_lines(
                "service | records | forgotten at once | seconds from POST to certificate | phases",
                (
                    (
                        row["head"],
                        f"{row['records']:,}",
                        f"{row['forgotten']:,}",
                        f"{row['seconds']:.2f}",
                        ", ".join(f"{name} {s:.2f}" for name, s in row["phase_seconds"].items()),
                    )
                    for row in document["service"]
                ),
            ),
            "",
            *_lines(
                "people forgotten | ratings | error | seconds | seconds anew",
                (
                    (
                        f"{row['people']:,}",
                        f"{row['records']:,}",
                        f"{row['error']:.4f}",
                        f"{row['seconds']:.2f}",
                        f"{row['fresh_s']:.2f}" if "fresh_s" in row else "",
                    )
                    for row in document["people"]["rows"]
                ),
            ),
        )
    )


def draw(document: Document, path: Path) -> Path:
    """Draw accuracy against the seconds of one request, heads and networks."""
    with mpl.rc_context(_STYLE):
        figure, axis = plt.subplots(figsize=(8, 5))
        group = document["rows"][0]["features"]
        rows = [row for row in document["rows"] if row["features"] == group and row["forgotten"]]
        for head, colour in _COLOURS.items():
            for marker, most in (("o", 100), ("s", 5000)):
                some = [row for row in rows if row["head"] == head and row["forgotten"] == most]
                axis.plot(
                    [max(row["seconds"], _LEAST_SECONDS) for row in some],
                    [100 * row["accuracy"] for row in some],
                    marker,
                    color=colour,
                    label=f"{head}, {most:,} records forgotten",
                )
        for name, marker in (("network from scratch", "x"), ("EfficientNet-Lite0, all of it", "+")):
            some = [row for row in document["networks"] if row["network"] == name]
            axis.plot(
                [row["seconds"] for row in some],
                [100 * row["accuracy"] for row in some],
                f"k{marker}--",
                markersize=9,
                label=name,
            )
        axis.set(xscale="log", xlabel="seconds of one request", ylabel="test accuracy, %")
        axis.set_title(f"{document['data']}: forgetting on public features")
        axis.legend(fontsize=8, loc="lower left")
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)
    return path


def _head_cells(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        yield (
            row["head"],
            row["features"],
            f"{row['forgotten']:,}",
            f"{row['requests']:,}",
            f"{row['accuracy']:.1%}",
            f"{row['seconds']:.2f}",
            f"{row['products']:.2f}",
            f"{row['gradients']:,.0f}",
            row["note"],
        )


def _lines(head: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    yield f"| {head} |"
    yield f"|{' --- |' * (head.count('|') + 1)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"

"""The tables and the picture of ``benchmarks.exact_heads``."""

from pathlib import Path
from typing import Any, Final

from benchmarks import harness

_COLOURS: Final = {"ridge": "C0", "softmax": "C2", "tracked release": "C3"}
_LEAST_SECONDS: Final = 0.01  # where a logarithmic axis puts what took no time

Document = dict[str, Any]


def table(document: Document) -> str:
    """Return all tables, in Markdown."""
    heads = (
        (
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
        for row in document["rows"]
    )
    networks = (
        (
            row["network"],
            row["pixels"],
            f"{row['seconds']:.1f}",
            f"{row['gradients']:,}",
            f"{row['accuracy']:.1%}",
        )
        for row in document["networks"]
    )
    served = (
        (
            row["head"],
            f"{row['records']:,}",
            f"{row['forgotten']:,}",
            f"{row['seconds']:.2f}",
            ", ".join(f"{name} {s:.2f}" for name, s in row["phase_seconds"].items()),
        )
        for row in document["service"]
    )
    people = (
        (
            f"{row['people']:,}",
            f"{row['records']:,}",
            f"{row['error']:.4f}",
            f"{row['seconds']:.2f}",
            f"{row['fresh_s']:.2f}" if "fresh_s" in row else "",
        )
        for row in document["people"]["rows"]
    )
    heading = (
        f"{document['data']}: {document['records']:,} records, {document['tested']:,} tested; "
        f"one matrix product takes {document['product_s']:.2f} s on {document['threads']} "
        f"threads. {document['note']}"
    )
    columns = "head | features | forgotten | requests | accuracy | seconds | products | gradients"
    tables = (
        harness.table(f"{columns} | ", heads),
        harness.table("network | pixels | seconds | pictures seen | accuracy", networks),
        harness.table("service | records | forgotten | seconds to certificate | phases", served),
        harness.table("people forgotten | ratings | error | seconds | seconds anew", people),
    )
    return "\n\n".join((heading, *tables))


def draw(document: Document, path: Path) -> Path:
    """Draw accuracy against the seconds of one request, heads and networks."""
    with harness.picture(path, (8, 5)) as (_, axes):
        axis = axes[0][0]
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
    return path

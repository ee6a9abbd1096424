"""What exact heads on public features cost and score: ``python -m benchmarks.exact_heads``.

CIFAR-10 as EfficientNet-Lite0 sees it (``benchmarks.public_features``; its features are computed
once and cached, which takes a quarter of an hour on one core). A ridge head, a softmax head that is
trained to a tolerance, and tracked release forget 0, 100 and 5,000 records; beside them a network
from scratch and all of EfficientNet-Lite0, trained for the seconds that one softmax request takes,
and for 45. Then the same from POST to certificate on a service of its own, and whole people
who leave a ridge head on ratings. Results go to benchmarks/results/exact_heads.json and .png.

    python -m benchmarks.exact_heads [--cache FOLDER] [--quick]
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks import exact_heads_networks as networks
from benchmarks import exact_heads_people as people
from benchmarks import exact_heads_service as service
from benchmarks import harness
from benchmarks.exact_heads_arithmetic import (
    CONVERGED,
    TOLERANCE,
    RidgeRows,
    Row,
    product_seconds,
    softmax_row,
    tracked_rows,
)
from benchmarks.exact_heads_figures import draw, table
from benchmarks.public_features import PublicFeatures, cifar10, default_cache, pixels_of_digits


@dataclass(frozen=True)
class Scale:
    """How much is run: the defaults are the benchmark, ``QUICK`` is a smoke test.

    Attributes:
        group: of the features that most rows use.
        requests: (forgotten records, requests that named them).
        served: records on the service.
        batches: records of each request to the service.
        longer_s: the networks' second, longer time.
        weight_decay, regularisation: of the softmax and the ridge head.
        tracked: the settings of tracked release.
        fine_tuned: whether the whole public network is there to be fine-tuned.
    """

    group: str = "and averages of four blocks"
    requests: tuple[tuple[int, int], ...] = ((100, 100), (100, 1), (5000, 50), (5000, 1))
    served: int = 50_000
    batches: tuple[int, ...] = (1, 100, 5000)
    longer_s: float = 45.0
    weight_decay: float = 3e-6
    regularisation: float = 0.01
    tracked_weight_decay: float = 3e-3
    tracked_noise_std: float = 0.1
    tracked_epochs: int = 3
    tracked_batch_size: int = 128
    fine_tuned: bool = True


QUICK: Final = Scale(
    group="all pixels",
    requests=((20, 20), (100, 1)),
    served=500,
    batches=(1, 20),
    longer_s=1.0,
    weight_decay=1e-3,
    tracked_weight_decay=1e-2,
    tracked_noise_std=0.5,
    tracked_epochs=2,
    tracked_batch_size=32,
    fine_tuned=False,
)


def head_rows(features: PublicFeatures, scale: Scale, *, product_s: float) -> Iterator[Row]:
    """Yield the rows of the group that most is measured on."""
    exact = RidgeRows(
        features, scale.group, regularisation=scale.regularisation, product_s=product_s
    )
    yield exact.row(0, requests=0)
    for forgotten, requests in scale.requests:
        yield exact.row(forgotten, requests=requests)
    del exact
    settings: dict[str, Any] = {"weight_decay": scale.weight_decay, "product_s": product_s}
    for forgotten in sorted({0, *(forgotten for forgotten, _ in scale.requests)}):
        yield softmax_row(features, scale.group, forgotten, **settings)
    yield softmax_row(features, scale.group, 0, tolerance=CONVERGED, **settings)
    yield from tracked_rows(
        features,
        scale.group,
        ((0, 0), scale.requests[0], scale.requests[-1]),  # the others cost as much a request
        weight_decay=scale.tracked_weight_decay,
        noise_std=scale.tracked_noise_std,
        epochs=scale.tracked_epochs,
        batch_size=scale.tracked_batch_size,
        product_s=product_s,
    )


def other_groups(features: PublicFeatures, scale: Scale) -> Iterator[Row]:
    """Yield a ridge and a softmax head on fewer and on more features."""
    for group in features.groups:
        if group != scale.group:
            some = features.of_group(group)
            product_s = product_seconds(some, repeats=1)
            exact = RidgeRows(some, group, regularisation=scale.regularisation, product_s=product_s)
            yield exact.row(0, requests=0)
            del exact
            yield softmax_row(some, group, 0, weight_decay=scale.weight_decay, product_s=product_s)


def network_rows(
    features: PublicFeatures, scale: Scale, *, seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield whole networks, trained for so long, and for longer."""
    for each in (seconds, scale.longer_s):
        yield networks.from_scratch(features.pictures, seconds=each)
        if scale.fine_tuned:
            yield networks.fine_tuned(features.pictures, seconds=each, most_test_pictures=2000)


def measure(features: PublicFeatures, ratings: people.Ratings, scale: Scale) -> dict[str, Any]:
    """Return everything that is measured.

    Raises:
        RuntimeError: what should be exact is not, or a certificate does not hold.
    """
    group = features.of_group(scale.group)
    product_s = product_seconds(group)
    rows = [*head_rows(group, scale, product_s=product_s), *other_groups(features, scale)]
    softmax_s = next(row.seconds for row in rows if row.head == "softmax" and row.forgotten)
    document: dict[str, Any] = {
        "data": features.pictures.name,
        "note": features.pictures.note,
        "records": len(features.train),
        "tested": len(features.test),
        "features": dict(features.groups),
        "threads": torch.get_num_threads(),
        "product_s": product_s,
        "tolerance": TOLERANCE,
        "rows": [asdict(row) for row in rows],
        "networks": list(network_rows(features, scale, seconds=softmax_s)),
        "people": people.measure(ratings),
    }
    heads = service.definitions(
        group,
        weight_decay=scale.weight_decay,
        tolerance=TOLERANCE,
        regularisation=scale.regularisation,
    )
    document["service"] = service.measure(group, heads, records=scale.served, batches=scale.batches)
    return document


def main() -> None:
    """Measure, print and write."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="of the features")
    parser.add_argument("--quick", action="store_true", help="small digits, in seconds")
    options = harness.parsed(parser, "exact_heads")
    started = time.perf_counter()
    if options.quick:
        document = measure(pixels_of_digits(), people.made_up(), QUICK)
    else:
        document = measure(cifar10(options.cache), people.load(options.cache), Scale())
    document["wall_s"] = round(time.perf_counter() - started, 1)
    print(table(document))
    if options.results is not None:
        harness.write(document, options.results)
        draw(document, options.results.with_suffix(".png"))


if __name__ == "__main__":
    main()

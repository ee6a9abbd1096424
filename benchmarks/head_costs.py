"""What each mechanism for a head costs and how well it does: ``python -m benchmarks.head_costs``.

In twenty settings offers are carried out on random records, by the service's own code and on one
thread: seconds, the shortest of three, and the loss on records that were held out. Of exact offers
whose loss is within ``EQUAL`` of the lowest, the one that takes the fewest seconds is the cheapest:
``tests/unit/app/planning/test_cheapest_head.py`` compares it with what ``auto`` takes.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from app.planning.lineage import DEFAULT_RELEASE_NOISE
from app.planning.mechanisms.exact_training import DEFAULT_TOLERANCE, ExactTraining
from app.planning.mechanisms.retraining import Retraining
from app.planning.mechanisms.tracked_release import TrackedRelease
from benchmarks import harness
from benchmarks.convex import Case, seen_by, service_head, softmax_minimum
from benchmarks.convex_runs import Method, Target, Trainings, retrained, tracked
from benchmarks.harness import seconds_of
from workers.training.examples import classified

RESULTS: Final = harness.RESULTS / "head_costs.json"
EQUAL: Final = 0.003  # nats
EXACT: Final = (ExactTraining.name, Retraining.name)
REPEATS: Final = 3
EPSILON: Final = 1.0
DELTA: Final = 1e-5
_BATCH: Final = 100
_HELD_OUT: Final = 2000
_SPREAD: Final = 3.0
_SEED: Final = 11


@dataclass(frozen=True)
class Setting:
    """A softmax head that was trained by its recipe and tracked, and a request."""

    records: int
    size: int
    classes: int
    forgotten: int
    weight_decay: float
    epochs: int


SETTINGS: Final = (
    Setting(500, 8, 2, 1, 0.01, 5),
    Setting(500, 8, 2, 50, 0.01, 30),
    Setting(1000, 8, 2, 10, 0.001, 5),
    Setting(1000, 8, 2, 100, 0.001, 30),
    Setting(1000, 32, 3, 1, 0.01, 30),
    Setting(1000, 32, 3, 10, 0.001, 10),
    Setting(2000, 32, 3, 100, 0.001, 30),
    Setting(2000, 32, 10, 200, 0.01, 5),
    Setting(2000, 64, 10, 1, 0.001, 5),
    Setting(2000, 64, 10, 10, 0.001, 30),
    Setting(4000, 64, 2, 100, 0.01, 10),
    Setting(4000, 64, 4, 1000, 0.01, 30),
    Setting(4000, 128, 4, 10, 0.001, 5),
    Setting(4000, 128, 10, 400, 0.001, 10),
    Setting(8000, 16, 2, 1, 0.01, 10),
    Setting(8000, 16, 10, 800, 0.001, 5),
    Setting(8000, 128, 10, 10, 0.01, 10),
    Setting(8000, 256, 10, 100, 0.001, 5),
    Setting(16000, 64, 10, 1000, 0.01, 5),
    Setting(16000, 128, 10, 10, 0.001, 10),
)


def cheapest(offers: Sequence[Mapping[str, Any]]) -> str:
    """Return the exact offer that takes the fewest seconds among those of the lowest loss."""
    exact = [offer for offer in offers if offer["mechanism"] in EXACT]
    lowest = min(offer["loss"] for offer in exact)
    equal = [offer for offer in exact if offer["loss"] <= lowest + EQUAL]
    return str(min(equal, key=lambda offer: offer["seconds"])["mechanism"])


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
    """Carry out every offer: seconds, passes over the retained records, loss and accuracy."""
    case = _case(setting)
    left = case.train.select(np.arange(setting.forgotten, setting.records))
    how = {"regularisation": setting.weight_decay, "tolerance": DEFAULT_TOLERANCE}
    found = softmax_minimum(case.head(), case.classes, left, case.test, **how)
    offers = [(ExactTraining.name, found.seconds, float(found.passes), found.evaluation)]
    target, cycle = Target(EPSILON, DELTA), setting.records // _BATCH
    for name, plan in (  # in batches: anew by the recipe, and from the tracked head
        (Retraining.name, retrained(setting.epochs * cycle)),
        (TrackedRelease.name, tracked(DEFAULT_RELEASE_NOISE)),
    ):
        method = Method("ours", _BATCH, plan=plan)
        start = Trainings(case, seed=_SEED, epochs=setting.epochs).start(method)
        lineage = start.branch(neighbours=method.neighbours, noise_seed=_SEED)
        lineage.forget(setting.forgotten)
        due = method.plan(case, lineage.history, (), target)
        seconds, _ = seconds_of(partial(lineage.run, due, epsilon=EPSILON))
        offers.append((name, seconds, due.steps / cycle, lineage.evaluation()))
    for name, seconds, passes, scored in offers:
        row = {"mechanism": name, "seconds": seconds, "passes": passes}
        yield row | {"loss": scored.mean_loss, "accuracy": scored.metrics["accuracy"]}


def _case(setting: Setting) -> Case:
    """Return records of random classes around random centres."""
    draws = np.random.default_rng(_SEED)
    centres = draws.normal(size=(setting.classes, setting.size))
    centres *= _SPREAD / np.sqrt(setting.size)
    labels = draws.integers(0, setting.classes, size=setting.records + _HELD_OUT)
    raw = centres[labels] + draws.normal(size=(len(labels), setting.size))
    everything = seen_by(
        service_head(setting.size, setting.classes),
        classified(torch.from_numpy(raw), torch.from_numpy(labels)),
    )
    return Case(
        "random",
        classes=setting.classes,
        weight_decay=setting.weight_decay,
        train=everything.select(np.arange(setting.records)),
        test=everything.select(np.arange(setting.records, len(labels))),
    )


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the settings that are done."""
    torch.set_num_threads(1)
    list(measure(SETTINGS[0]))  # what is slow the first time only
    rows = list[dict[str, Any]]()
    document = {"equal_nats": EQUAL, "epsilon": EPSILON, "delta": DELTA, "settings": rows}
    with threadpool_limits(limits=1):
        for setting in SETTINGS[: given.settings]:
            repeats = zip(*(measure(setting) for _ in range(REPEATS)), strict=True)
            offers = [min(same, key=lambda offer: offer["seconds"]) for same in repeats]
            rows.append({**asdict(setting), "offers": offers, "cheapest": cheapest(offers)})
            yield document


if __name__ == "__main__":
    options = {"--settings": {"type": int, "help": "the first ones alone"}}
    harness.main("head_costs", __doc__, run, options=options)

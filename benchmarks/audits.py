"""How often audits contradict honest and sabotaged builds: ``python -m benchmarks.audits``.

Each build is a whole audit over HTTP: ``workers.audit`` against the real API, dispatcher and
worker, of 60 canaries among 280 other digits and 40 guesses (20 of ensembles), at 95 %. Sabotage is
in the worker alone. Aims: of honest builds at most 5 % are contradicted, of sabotaged ones at least
95 %; intervals are Clopper and Pearson's at 95 %.

The worst case of noise needs no service: a mechanism's own arithmetic and noise, of the two starts
that lie as far apart as it lets them. A release of its one weight tells which start it was; of 600
releases the 200 clearest are guessed, and ten million bound ε from below.
"""

import math
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple
from unittest import mock

import numpy as np
import torch
from scipy.stats import binom, binomtest

from app.access import api_keys
from app.accounting import gradient_clipping, output_perturbation
from app.cli.application import create_app
from app.client import ExpungeClient
from app.domain.states import Scope
from benchmarks import harness
from benchmarks.audits_cases import BUILDS, CANARIES, MODELS, backbone, guesses_of, rows
from tests.support.digits import DATASET, TASK, digits_parquet
from tests.support.serving import serve
from tests.support.working import working
from workers.audit.auditing import Audit
from workers.audit.report import Report
from workers.audit.statistics import fewest_contradicting, right_guesses
from workers.noise.generators import SecureNoise
from workers.training.team import ALONE
from workers.training.vectors import clip_, move_

CONFIDENCE: Final = 0.95
FEWEST: Final = 4
"""Audits of each build, before cheap ones are audited more often."""


class Service:
    """A whole service in this process, with one model of each kind."""

    def __init__(self, running: ExitStack) -> None:
        running.enter_context(harness.embedded())
        services = harness.new_services()
        with services.database.transaction() as session:
            secret = api_keys.create_key(session, name="auditor", scopes=[Scope.ADMIN])[1]
        url = running.enter_context(serve(create_app(services)))
        self.client = running.enter_context(ExpungeClient(url, secret))
        self.work = working(services)
        self.client.define_dataset(**DATASET)
        self.client.push_records("digits", digits_parquet(40))
        definition, weights = backbone()
        self.client.define_backbone(definition)
        self.client.upload_backbone(definition["name"], weights)
        self.defined: dict[str, str] = {}

    def audit(self, model: str, sabotage: Any, directory: Path) -> Report:
        """Audit one build."""
        if model not in self.defined:
            name = self.defined[model] = f"model-{len(self.defined)}"
            of = {"name": name, "dataset": "digits", "task": TASK}
            self.client.define_model(of | MODELS[model])
            self.work()
        stages = [""]

        def tell(what: str, run: object) -> None:
            if run is None:
                stages.append(what)
                self.work()

        with ExitStack() as patched:
            if sabotage is not None:
                sabotage(lambda *of: patched.enter_context(mock.patch.object(*of)), stages)
            return Audit(
                client=self.client,
                model=self.defined[model],
                rows=rows(),
                trusted=self.client.trusted_keys(),
                directory=directory,
                name=f"audit-{time.time_ns()}",
                canaries=CANARIES,
                guesses=guesses_of(model),
                confidence=CONFIDENCE,
                tell=tell,
            ).run()


RELEASES, CLEAREST, MOST_RELEASES = 600, 200, 10_000_000
TARGET: Final = {"epsilon": 1.0, "delta": 1e-5}
FAR: Final = 3.2
"""How many standard deviations of the noise beyond the one start a release must lie to count."""


def interval(hits: int, draws: int) -> tuple[float, float]:
    """Return Clopper and Pearson's limits of a probability at 95 %."""
    found = binomtest(hits, draws).proportion_ci(method="exact")
    return float(found.low), float(found.high)


PUBLISHED: Final = {"initial_clip": 0.01, "gradient_clip": 100.0, "steps": 1}
PUBLISHED |= {"learning_rate": 1e-4, "weight_decay": 10.0}
"""Koloskova et al. 2025, Table 5, first row: said to be ε = 1 with this noise."""
PUBLISHED_NOISE: Final = 0.02827


class WorstCase(NamedTuple):
    """A mechanism's noise on the two ends ±``place`` that lie as far apart as it lets."""

    mechanism: str
    place: float
    noise_std: float
    needed: float

    def releases(self, signs: np.ndarray) -> np.ndarray:
        """Return releases from the ends with these signs."""
        position = torch.from_numpy(signs * self.place)
        SecureNoise().add_(position, self.noise_std)
        return position.numpy()


def perturbed(share: float) -> WorstCase:
    """Return output perturbation with a share of the noise that it needs."""
    needed = output_perturbation.calibrate(**TARGET, initial_clip=1.0, dimension=1)
    return WorstCase("output perturbation", clipped(1.0), share * needed, needed)


def published() -> WorstCase:
    """Return one step of gradient clipping with the noise that was published for ε = 1."""
    position = torch.tensor([clipped(PUBLISHED["initial_clip"])], dtype=torch.float64)
    gradient = torch.tensor([-clipped(PUBLISHED["gradient_clip"])], dtype=torch.float64)
    rate = PUBLISHED["learning_rate"]
    contraction = 1 - rate * PUBLISHED["weight_decay"]
    move_(position, gradient, contraction=contraction, rate=rate)
    needed = gradient_clipping.calibrate(**TARGET, **PUBLISHED)
    return WorstCase("gradient clipping, published", position.item(), PUBLISHED_NOISE, needed)


def clipped(norm: float) -> float:
    """Return what a mechanism makes of a weight that is far away."""
    vector = torch.tensor([1e3 * norm], dtype=torch.float64)
    clip_(vector, norm, ALONE)
    return vector.item()


def worst_case(case: WorstCase, builds: int = 100) -> dict[str, Any]:
    """Bound ε by many releases, and count builds that a few of them contradict."""
    contradicted, generator = 0, np.random.default_rng()
    knows = math.exp(TARGET["epsilon"]) / (1 + math.exp(TARGET["epsilon"]))
    for _ in range(builds):
        coins = generator.integers(2, size=RELEASES)
        scores = np.stack([np.zeros(RELEASES), case.releases(2.0 * coins - 1)], axis=1)
        right = right_guesses([scores.tolist()], coins.tolist(), CLEAREST)
        chance = binom.sf(right - 1, CLEAREST, knows) + RELEASES * TARGET["delta"]
        contradicted += bool(chance < 1 - CONFIDENCE)
    beyond = case.place + FAR * case.noise_std
    ends = [np.full(MOST_RELEASES, sign) for sign in (1.0, -1.0)]
    mine, other = (int((case.releases(each) > beyond).sum()) for each in ends)
    low, high = interval(mine, MOST_RELEASES)[0], interval(other, MOST_RELEASES)[1]
    return {
        "mechanism": case.mechanism,
        "noise": case.noise_std / case.needed,
        "builds": builds,
        "contradicted": contradicted,
        "releases": MOST_RELEASES,
        "epsilon_lower_bound": math.log((low - TARGET["delta"]) / high),
    }


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what was found after each audit, beside what is in the results already."""
    document = harness.earlier(given) or {
        "worst_case": [worst_case(each) for each in (perturbed(1.0), perturbed(0.25), published())]
    }
    document["machine"] = harness.machine(torch.device("cpu"))
    builds = document.setdefault("builds", {})
    for sort, of in BUILDS.items():
        for name in of:
            none = {"right_before": [], "right": [], "contradicted": 0, "seconds": 0.0}
            builds.setdefault(sort, {}).setdefault(name, none)
    ends = time.monotonic() + 60 * given.minutes
    with ExitStack() as running:
        service = Service(running)
        while time.monotonic() < ends:
            sort, name = next_build(builds)
            began, case = time.monotonic(), builds[sort][name]
            with tempfile.TemporaryDirectory() as folder:
                report = service.audit(*BUILDS[sort][name], Path(folder))
            case["seconds"] += time.monotonic() - began
            case["contradicted"] += report.contradicts
            for key in ("right_before", "right"):
                case[key].append(report.predicate["result"][key])
            yield document


def next_build(builds: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Return the rarer sort, and a build of it that was audited too little or took least time."""
    sort = min(builds, key=lambda each: sum(len(case["right"]) for case in builds[each].values()))

    def turn(name: str) -> tuple[int, float]:
        case = builds[sort][name]
        return min(FEWEST, len(case["right"])), case["seconds"]

    return sort, min(builds[sort], key=turn)


def table(document: dict[str, Any]) -> str:
    """Return how many builds of each kind were contradicted."""
    lines = []
    for sort, cases in document["builds"].items():
        for name, case in cases.items():
            if case["right"]:
                model, guesses = BUILDS[sort][name][0], guesses_of(BUILDS[sort][name][0])
                before, after = median(case["right_before"]), median(case["right"])
                right = f"{before:g} then {after:g} of {guesses}"
                lines.append((name, model, right, *_share([case])))
        lines.append((f"all {sort}", "", "", *_share(cases.values())))
    head = "build | model | right guesses before, then after | contradicted | 95 % interval"
    return harness.table(head, lines)


def _share(cases: Iterable[dict[str, Any]]) -> tuple[str, str]:
    hits, audits = np.sum([(case["contradicted"], len(case["right"])) for case in cases], axis=0)
    low, high = interval(int(hits), int(audits))
    return f"{hits} of {audits}", f"{100 * low:.1f} to {100 * high:.1f} %"


def figure(document: dict[str, Any], path: Path) -> None:
    """Draw the share of right guesses of each audit, before and after the request."""
    cases = [
        (f"{sort}: {name}", BUILDS[sort][name][0], case)
        for sort, of in document["builds"].items()
        for name, case in of.items()
    ]
    with harness.picture(path, (9, 0.36 * len(cases))) as (_, ((axis,),)):
        for place, (_, model, case) in enumerate(cases):
            guesses = guesses_of(model)
            for key, color, lift in (("right_before", "0.7", 0.15), ("right", "C0", -0.15)):
                shares = [each / guesses for each in case[key]]
                axis.plot(shares, [place + lift] * len(shares), "o", color=color, alpha=0.5)
            needed = fewest_contradicting(
                guesses=guesses,
                confidence=CONFIDENCE,
                epsilon=MODELS[model].get("policy", {}).get("epsilon", 0.0),
                delta=0.0,
            )
            if needed:
                axis.plot([needed / guesses] * 2, [place - 0.4, place + 0.4], "C3")
        axis.set_yticks(range(len(cases)), labels=[name for name, _, _ in cases])
        axis.invert_yaxis()
        axis.set(xlabel="right guesses before (grey) and after; red: contradicted", xlim=(0, 1.02))


if __name__ == "__main__":
    options = {"--minutes": {"type": float, "default": 60.0, "help": "begin no audit after"}}
    harness.main("audits", __doc__, run, options=options, table=table, figure=figure)

"""How often audits contradict honest and sabotaged builds: ``python -m benchmarks.audits``.

Each build is a whole audit over HTTP: ``workers.audit`` against the real API, dispatcher and
worker, of 60 canaries among 280 other digits and 40 guesses (20 of ensembles), at 95 %. Sabotage is
in the worker alone. Aims: of honest builds at most 5 % are contradicted, of sabotaged ones at least
95 %; intervals are Clopper and Pearson's at 95 %.

The worst case of noise needs no service: a mechanism's own arithmetic and noise, of the two starts
that lie as far apart as it lets them. A release of its one weight tells which start it was; of 600
releases the 200 clearest are guessed, and ten million bound ε from below.
"""

import itertools
import math
import signal
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final
from unittest import mock

import numpy as np
import pyarrow as pa
import torch
import uvicorn
from rq import SimpleWorker
from rq.serializers import JSONSerializer
from scipy.stats import beta, binom

from app.access import api_keys
from app.accounting import gradient_clipping, output_perturbation
from app.cli.application import create_app
from app.client import ExpungeClient
from app.domain.states import Scope, Verdict
from app.registry.datasets.columns.parquet import to_parquet
from app.runtime.locations import redis_connection
from benchmarks import harness
from benchmarks.audits_cases import (
    BUILDS,
    CANARIES,
    MODELS,
    QUARTER_NOISE,
    TASK,
    Sabotage,
    backbone,
    guesses_of,
    rows,
)
from workers.audit.auditing import Audit
from workers.audit.report import Report
from workers.audit.statistics import fewest_contradicting, right_guesses
from workers.dispatcher import Dispatcher
from workers.noise.generators import SecureNoise
from workers.queue import NAME, open_queue
from workers.training.team import ALONE
from workers.training.vectors import clip_, move_

CONFIDENCE: Final = 0.95


class Service:
    """A whole service in this process, with one model of each kind."""

    def __init__(self, running: ExitStack) -> None:
        running.enter_context(harness.embedded())
        self.services = services = harness.new_services()
        with services.database.transaction() as session:
            secret = api_keys.create_key(session, name="auditor", scopes=[Scope.ADMIN])[1]
        config = uvicorn.Config(create_app(services), port=0, log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        running.callback(thread.join)
        running.callback(server.handle_exit, signal.SIGTERM, None)
        port = server.servers[0].sockets[0].getsockname()[1]
        self.client = running.enter_context(ExpungeClient(f"http://127.0.0.1:{port}", secret))
        self._redis = redis_connection(services.settings)
        columns = {"features": "list<uint8, 64>", "label": "int64"}
        self.client.define_dataset("digits", columns, record_id="record_id")
        few = rows(40).append_column("record_id", pa.array([f"{each}" for each in range(40)]))
        self.client.push_records("digits", to_parquet(few))
        definition, weights = backbone()
        self.client.define_backbone(definition)
        self.client.upload_backbone(definition["name"], weights)
        self.defined: dict[str, str] = {}

    def work(self) -> None:
        """Dispatch and work until nothing is left to do."""
        queue = open_queue(self._redis)
        dispatcher = Dispatcher(self.services, queue)
        dispatcher.tick()
        while queue.count:
            worker = SimpleWorker([NAME], connection=self._redis, serializer=JSONSerializer)
            worker.work(burst=True, logging_level="WARNING")
            dispatcher.tick()

    def audit(self, model: str, sabotage: Sabotage | None, directory: Path) -> Report:
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
    low = beta.ppf(0.025, hits, draws - hits + 1) if hits else 0.0
    return float(low), float(beta.ppf(0.975, hits + 1, draws - hits) if hits < draws else 1.0)


PUBLISHED: Final = {
    "initial_clip": 0.01,
    "gradient_clip": 100.0,
    "learning_rate": 1e-4,
    "weight_decay": 10.0,
    "steps": 1,
}
"""Koloskova et al. 2025, Table 5, first row: said to be ε = 1 with this noise."""
PUBLISHED_NOISE: Final = 0.02827


@dataclass(frozen=True)
class WorstCase:
    """A mechanism's noise, between the two starts and gradients that lie as far apart as it lets.

    Attributes:
        place: of one of them before the noise; the other one's has the other sign.
        needed: the noise that ε = 1 needs.
    """

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
    name = "gradient clipping, published"
    return WorstCase(name, position.item(), PUBLISHED_NOISE, needed)


def clipped(norm: float) -> float:
    """Return what a mechanism makes of a weight that is far away."""
    vector = torch.tensor([1e3 * norm], dtype=torch.float64)
    clip_(vector, norm, ALONE)
    return vector.item()


def worst_case(case: WorstCase, builds: int) -> dict[str, Any]:
    """Bound ε by many releases, and count builds that a few of them contradict."""
    contradicted, generator = 0, np.random.default_rng()
    knows = math.exp(TARGET["epsilon"]) / (1 + math.exp(TARGET["epsilon"]))
    for _ in range(builds):
        coins = generator.integers(2, size=RELEASES)
        scores = np.stack([np.zeros(RELEASES), case.releases(2.0 * coins - 1)], axis=1)
        right = right_guesses(scores.tolist(), coins.tolist(), CLEAREST)
        chance = binom.sf(right - 1, CLEAREST, knows) + RELEASES * TARGET["delta"]
        contradicted += bool(chance < 1 - CONFIDENCE)
    beyond = case.place + FAR * case.noise_std
    ends = [np.full(MOST_RELEASES, sign) for sign in (1.0, -1.0)]
    mine, other = (int((case.releases(each) > beyond).sum()) for each in ends)
    low, high = interval(mine, MOST_RELEASES)[0], interval(other, MOST_RELEASES)[1]
    bound = math.log((low - TARGET["delta"]) / high)
    return {
        "mechanism": case.mechanism,
        "noise": case.noise_std / case.needed,
        "builds": builds,
        "contradicted": contradicted,
        "releases": MOST_RELEASES,
        "epsilon_lower_bound": bound,
    }


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what was found after each audit; builds take turns."""
    document: dict[str, Any] = {
        "canaries": CANARIES,
        "confidence": CONFIDENCE,
        "machine": harness.machine(torch.device("cpu")),
        "worst_case": [
            worst_case(each, given.builds)
            for each in (perturbed(1.0), perturbed(0.25), published())
        ],
        "builds": {
            name: {
                "model": model,
                "honest": sabotage is None,
                "guesses": guesses_of(model),
                "right_before": [],
                "right": [],
                "contradicted": 0,
                "inconclusive": 0,
            }
            for name, (model, sabotage) in BUILDS.items()
        },
    }
    ends = time.monotonic() + 60 * given.minutes
    with ExitStack() as running:
        service = Service(running)
        for name in itertools.cycle(BUILDS):
            if time.monotonic() > ends:
                break
            with tempfile.TemporaryDirectory() as folder:
                found = service.audit(*BUILDS[name], Path(folder)).predicate["result"]
            case = document["builds"][name]
            for key in ("right_before", "right"):
                case[key].append(found[key])
            for verdict in (Verdict.CONTRADICTED, Verdict.INCONCLUSIVE):
                case[verdict] += found["verdict"] == verdict
            yield document


def table(document: dict[str, Any]) -> str:
    """Return how many builds of each kind were contradicted, then those of the worst case."""
    builds = document["builds"].items()
    lines = [
        (
            name,
            "" if case["honest"] else case["model"],
            " then ".join(f"{median(case[key]):g}" for key in ("right_before", "right"))
            + f" of {case['guesses']}",
            *_share(case["contradicted"], len(case["right"])),
        )
        for name, case in builds
    ]
    for what, is_honest in (("all honest", True), ("all sabotaged but the noise", False)):
        cases = [
            case for name, case in builds if case["honest"] is is_honest and name != QUARTER_NOISE
        ]
        hits = sum(case["contradicted"] for case in cases)
        lines.append((what, "", "", *_share(hits, sum(len(case["right"]) for case in cases))))
    worst = (
        (
            each["mechanism"],
            f"{each['noise']:.3g}",
            *_share(each["contradicted"], each["builds"]),
            f"{each['epsilon_lower_bound']:.2f}",
        )
        for each in document["worst_case"]
    )
    shares = "contradicted | 95 % interval"
    return "\n\n".join(
        (
            harness.table(f"build | model | right guesses before, then after | {shares}", lines),
            harness.table(
                f"mechanism | noise, of that for ε = 1 | {shares} | ε is at least", worst
            ),
        )
    )


def _share(hits: int, draws: int) -> tuple[str, str]:
    low, high = interval(hits, draws)
    return f"{hits} of {draws}", f"{100 * low:.1f} to {100 * high:.1f} %"


def figure(document: dict[str, Any], path: Path) -> None:
    """Draw the share of right guesses of each audit, before and after the request."""
    builds = document["builds"]
    with harness.picture(path, (9, 5.5)) as (_, ((axis,),)):
        for key, color, label, lift in (
            ("right_before", "0.7", "before the request", 0.15),
            ("right", "C0", "after it", -0.15),
        ):
            shares = [[each / case["guesses"] for each in case[key]] for case in builds.values()]
            across = [each for of in shares for each in of]
            down = [place + lift for place, of in enumerate(shares) for _ in of]
            axis.plot(across, down, "o", color=color, alpha=0.5, label=label)
        for place, case in enumerate(builds.values()):
            claim = {"epsilon": float("ε" in case["model"]), "delta": 0.0}
            needed = fewest_contradicting(
                guesses=case["guesses"], confidence=document["confidence"], **claim
            )
            axis.plot([(needed or 0) / case["guesses"]] * 2, [place - 0.4, place + 0.4], "C3")
        axis.set_yticks(range(len(builds)), labels=list(builds))
        axis.invert_yaxis()
        axis.set(xlabel="right guesses (right of the red line: contradicted)", xlim=(0, 1.02))
        axis.legend(fontsize=9, loc="lower left")


if __name__ == "__main__":
    harness.main(
        "audits",
        __doc__,
        run,
        options={
            "--minutes": {"type": float, "default": 60.0, "help": "begin no audit after"},
            "--builds": {"type": int, "default": 100, "help": "of the worst case"},
        },
        table=table,
        figure=figure,
    )

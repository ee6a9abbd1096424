"""What a noisy step costs beside a plain one: ``python -m benchmarks.step_overhead [--cuda]``.

Every mechanism takes its steps where the service takes them: planned by the planner, behind the
seal, on the feed and in the frame of its lineage (DP-SGD, which trains, in its own loop). A plain
step is one of the service's own training by SGD on the same network and records. All take turns
within one run, so a machine that slows down slows all of them. The target: gradient clipping and
model clipping at most 1.05 times a plain step. Beside it, how many numbers a second the service's
noise adds to a vector, and ``torch.randn``; on a CPU a second is one of a core's work. DP-SGD by
Opacus takes turns with ours where it is installed (``benchmarks.private_training``). ``--cuda``
measures a GPU and prints JSON alone.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from app.accounting import dp_sgd, output_perturbation
from app.domain.architectures import ArchitectureSpec
from app.domain.description import ModelDescription
from app.domain.heads import linear_head
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.domain.schema import InputSchema
from app.domain.tasks.built_in import classification
from app.planning.shape import ConvexShape, ModelShape
from benchmarks import harness
from benchmarks.convex import OrdinaryNoise
from benchmarks.data import network_of
from benchmarks.private_training import OPACUS, has_opacus, train_by_opacus
from tests.support.lineages import planned, trained
from workers.data.loading import ModelSpec, RunData
from workers.data.memory import keep_freed
from workers.mechanisms.catalogue import rule_of
from workers.mechanisms.lineage import Lineage, lineage_of
from workers.noise.generators import NoiseSource, SecureNoise
from workers.seal.sealed import Sealed
from workers.training.dp_sgd.training import PrivateTraining, train_privately
from workers.training.examples import Examples, classified
from workers.training.networks.network import Network
from workers.training.tasks.task import INPUTS

PLAIN: Final = "plain SGD"
CLASSES: Final = 10
_TASK: Final = classification(CLASSES)
_BOUNDS: Final = _TASK.bounds
BATCH: Final = 128
_EPOCHS: Final = 20
_SHAPE: Final = (3, 32, 32)
STEPS: Final = 3
SIZE: Final = 1 << 23
LIMIT: Final = 1.05
LIMITED: Final = ("gradient_clipping", "model_clipping")


class _EnoughError(Exception):
    """Ends a run that has been timed long enough."""


def stamps_of(work: Callable[..., object], device: torch.device, steps: int) -> list[float]:
    """Return when the first steps ended of work that is told to call ``on_progress`` after each."""
    stamps = list[float]()

    def note(*_: object) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        stamps.append(time.perf_counter() if device.type == "cuda" else time.process_time())
        if len(stamps) > steps:
            raise _EnoughError

    with suppress(_EnoughError):
        work(on_progress=note)
    harness.require(len(stamps) > 1, "not fewer than two steps: let the plan take more")
    return stamps


@dataclass(frozen=True, eq=False)
class Case:
    """A network, records that fit it, and mechanisms, each with what its policy fixes."""

    network: str
    architecture: ArchitectureSpec
    mechanisms: Mapping[str, Mapping[str, Any]]
    records: int = BATCH
    epsilon: float = 1.0

    @cached_property
    def size(self) -> int:
        """Return the number of trainable parameters."""
        return sum(tensor.numel() for tensor in self.module().parameters())

    @cached_property
    def examples(self) -> Examples:
        """Return made-up records."""
        draws = np.random.default_rng(0)
        pixels = draws.integers(0, 256, size=(self.records, *_SHAPE), dtype=np.uint8)
        return classified(pixels, draws.integers(0, CLASSES, self.records), scale=1 / 255)

    @property
    def recipe(self) -> TrainingRecipe:
        """Return plain SGD."""
        if self.is_convex:
            given = {"epochs": _EPOCHS, "batch_size": BATCH}
            return linear_head.recipe_of(given, _TASK, mechanism="tracked_release")
        return TrainingRecipe(
            momentum=0.0, schedule="constant", learning_rate=1e-3, batch_size=BATCH
        )

    @property
    def is_convex(self) -> bool:
        """Say whether the network is a linear head."""
        return self.architecture.name == linear_head.NAME

    def module(self) -> nn.Module:
        """Build the network."""
        return network_of(self.architecture, self.examples)

    def steps_of(
        self, mechanism: str, noise: NoiseSource, device: torch.device, steps: int
    ) -> list[float]:
        """Return when each step of plain SGD or of a mechanism ended.

        Output perturbation takes none: it gets two stamps, before and after its perturbation.
        """
        work = self._work(mechanism, noise, device)
        if mechanism != output_perturbation.NAME:
            return stamps_of(work, device, steps)
        return stamps_of(lambda on_progress: (on_progress(), work(), on_progress()), device, steps)

    def _work(
        self, mechanism: str, noise: NoiseSource, device: torch.device
    ) -> Callable[..., object]:
        given = (self.examples, self.recipe)
        sampling = {"sampling_rate": BATCH / self.records, "steps": 10**6}
        private = PrivateTraining(noise_multiplier=1.0, gradient_clip=1.0, **sampling)
        if mechanism == OPACUS:  # its own fast layer where the network is a linear head
            module = nn.Sequential(nn.Flatten(), nn.LazyLinear(CLASSES))
            module = (module if self.is_convex else self.module()).to(device)
            module(next(self.examples.in_order(1, device=device))[INPUTS])
            return partial(train_by_opacus, module, *given, private)
        if mechanism == dp_sgd.NAME:
            network = Network(self.module, device=device)
            return partial(train_privately, network, *given, private, noise=noise)
        sealed = Sealed(self.module, epsilon=self.epsilon, delta=Policy.delta, device=device)
        if mechanism == PLAIN:
            return partial(sealed.train, *given, epochs=1e3)
        plan = self.plan(mechanism)
        lineage = self._lineage(plan)
        return partial(
            sealed.unlearn, rule_of(plan), lineage.feed, frame=lineage.frame, noise=noise
        )

    def plan(self, mechanism: str) -> Plan:
        """Return the plan of an unlearning run, as the planner makes it."""
        policy = {"epsilon": self.epsilon, "parameters": self.mechanisms[mechanism]}
        shape = replace(self._shape(), earlier_releases=1)
        if self.is_convex:
            shape = trained(mechanism, shape=self._shape(), forget={0: 10}, **policy)
        return planned(shape, mechanism, **policy)

    def _shape(self) -> ModelShape:
        recipe = self.recipe
        convex = ConvexShape(
            lipschitz=_BOUNDS.lipschitz,
            smoothness=_BOUNDS.smoothness,
            weight_decay=recipe.weight_decay,
            learning_rate=recipe.learning_rate,
        )
        return ModelShape(
            retained=self.records,
            batch_size=BATCH,
            recipe_epochs=_EPOCHS if self.is_convex else 1e4,
            dimension=self.size,
            convex=convex if self.is_convex else None,
        )

    def _lineage(self, plan: Plan) -> Lineage:
        schema = InputSchema(shape=_SHAPE, dtype="uint8", scale=1 / 255, classes=CLASSES)
        described = ModelDescription(
            model=self.network, version=1, architecture=self.architecture, task=_TASK
        )
        policy = Policy(mechanism=plan.mechanism)
        batches = int(plan.settings.get("batches", 1))
        data = RunData(
            retain=self.examples,
            held_out=self.examples.select(np.arange(0)),
            plan=plan,
            batch_of=np.arange(self.records) % batches,
        )
        spec = ModelSpec(described, self.recipe, policy, schema, "none", pa.schema([]))
        return lineage_of(plan, spec, data, self.module)


# Ten steps or more each, so that there is something to time.
CASES: Final = (
    Case(
        "cnn",
        ArchitectureSpec("cnn", {"channels": [64, 128, 256, 256]}),
        {
            "gradient_clipping": {"steps": 50},
            "model_clipping": {"steps": 50},
            "output_perturbation": {},
            "dp_sgd": {},
        },
    ),
    Case(
        "linear_head, in batches",
        ArchitectureSpec(linear_head.NAME, {}),
        {"tracked_release": {"steps": 500}, "projected_noisy_sgd": {"steps": 500}, "dp_sgd": {}},
        records=40 * BATCH,
    ),
    Case(
        "linear_head, one batch",
        ArchitectureSpec(linear_head.NAME, {}),
        {
            "delete_to_descent": {"steps": 500},
            "langevin_unlearning": {"steps": 500},
            "noisy_gd_convex": {"unlearning_steps": 500},
        },
    ),
    Case(
        "linear_head, one batch, bounded loss",
        ArchitectureSpec(linear_head.NAME, {"bias": 0}),
        {
            "noisy_gd_nonconvex": {
                "loss_bound": 1.0,
                "smoothness": 2.1,
                "weight_decay": 21.0,
                "learning_rate": 2.9e-7,
                "noise_std": 0.02379,
                "order": 1.5,
                "request_size": 10,
            }
        },
        epsilon=50.0,
    ),
)


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the ratios of every case."""
    keep_freed()  # as workers do
    device, rounds = torch.device("cuda" if given.cuda else "cpu"), given.rounds
    harness.require(torch.cuda.is_available() or not given.cuda, "torch finds a CUDA device")
    rows = [row for case in CASES for row in measure(case, device, rounds=rounds, steps=STEPS)]
    yield {
        **harness.machine(device),
        "rounds": rounds,
        "limit": LIMIT,
        "noise_numbers_a_second": noise_a_second(device, rounds=rounds),
        "rows": rows,
    }


def noise_a_second(device: torch.device, *, rounds: int, size: int = SIZE) -> dict[str, float]:
    """Return how many float64 numbers each source adds to one vector, in turn: fastest rounds."""
    position = torch.zeros(size, dtype=torch.float64, device=device)
    sources: tuple[NoiseSource, ...] = (OrdinaryNoise(), SecureNoise(device))
    taken: dict[str, list[float]] = {source.name: [] for source in sources}
    for _ in range(rounds + 1):
        for source in sources:
            taken[source.name].append(_seconds(source, position))
    return {name: size / min(seconds[1:]) for name, seconds in taken.items()}


def _seconds(source: NoiseSource, position: torch.Tensor) -> float:
    clock = time.perf_counter if position.is_cuda else time.process_time
    started = clock()
    source.add_(position, 1.0)
    if position.is_cuda:
        torch.cuda.synchronize(position.device)
    return clock() - started


def measure(
    case: Case, device: torch.device, *, rounds: int, steps: int
) -> Iterable[dict[str, Any]]:
    """Yield each mechanism's step beside a plain one.

    Every figure is the fastest of all rounds: what else runs on the machine only ever adds to it.
    The first round warms up.
    """
    rival = [OPACUS] if dp_sgd.NAME in case.mechanisms and has_opacus() else []
    taken: dict[str, list[float]] = {name: [] for name in (PLAIN, *case.mechanisms, *rival)}
    position, alone = torch.zeros(case.size, dtype=torch.float64, device=device), list[float]()
    noise = SecureNoise(device)
    for _ in range(rounds + 1):
        alone.append(_seconds(noise, position))
        for name, seconds in taken.items():
            stamps = case.steps_of(name, SecureNoise(device), device, steps)
            seconds.append(min(later - earlier for earlier, later in pairwise(stamps)))
    least = {name: min(seconds[1:]) for name, seconds in taken.items()}
    plain = least.pop(PLAIN)
    for name, seconds in least.items():
        yield {
            "mechanism": name,
            "network": case.network,
            "parameters": case.size,
            "batch": BATCH,
            "plain_ms": 1000 * plain,
            "step_ms": 1000 * seconds,
            "ratio": seconds / plain,
            "noise_share": min(alone[1:]) / seconds,
        }


def met(document: dict[str, Any]) -> bool:
    """Say whether clipping keeps the limit."""
    limited = [row["ratio"] for row in document["rows"] if row["mechanism"] in LIMITED]
    return max(limited) <= LIMIT


if __name__ == "__main__":
    options = {
        "--rounds": {"type": int, "default": 8},
        "--cuda": {"action": "store_true", "help": "measure a GPU; the CPU's results stay"},
    }
    harness.main("step_overhead", __doc__, run, options=options, met=met)

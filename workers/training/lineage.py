"""The training of each kind of lineage, and the data of its noisy phase.

    Ordinary     any network, trained by its recipe; unlearned in a reference frame, then fine-tuned
    Descending   trained by descent on fixed batches, so that drift or noise can be accounted for
    Private      trained with DP-SGD
    Solved       a function of the retained records, computed anew in every run

Only mechanisms for the first fine-tune: in the second every gradient is part of what later
certificates count, in the third every noise-free gradient of a record that is still there would end
its privacy, and the fourth would not be such a function any more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from app.accounting.histories.history import History
from app.domain.errors import RunFailedError
from app.domain.plan import Plan, TrainingKind
from app.domain.tasks.spec import TaskSpec
from app.planning.mechanisms.catalogue import mechanism_named
from workers.data.backbone import frame_of
from workers.data.examples import Examples
from workers.data.loading import ModelSpec, RunData
from workers.dp_sgd.training import PrivateTraining
from workers.exact.solver import Solver
from workers.mechanisms.catalogue import solver_of
from workers.mechanisms.descent import Descent
from workers.mechanisms.frame import ReferenceFrame
from workers.noise.generators import NoiseSource
from workers.rehearsal.one_loss import require_one_loss
from workers.seal.sealed import Sealed, SealedProgress
from workers.training.feeds import Feed, FixedBatches, RandomBatches


class Lineage(Protocol):
    """What a run needs to know about its model's kind of lineage."""

    @property
    def feed(self) -> Feed:
        """The data of the noisy steps."""

    @property
    def frame(self) -> ReferenceFrame | None:
        """The coordinates of the noisy steps; None for the weights themselves."""

    @property
    def dtype(self) -> torch.dtype | None:
        """The network's dtype; None leaves it as built."""

    def train(self, sealed: Sealed, noise: NoiseSource, on_progress: SealedProgress) -> None:
        """Train the sealed, fresh network on the retained records."""


def lineage_of(
    plan: Plan,
    model: ModelSpec,
    data: RunData,
    factory: Callable[[], nn.Module],
) -> Lineage:
    """Return the kind of lineage that a plan is for.

    Raises:
        PlanError: a record's loss in training is not of that record alone, and the plan needs that.
    """
    if plan.training is TrainingKind.DESCENT:
        require_one_loss(factory, model.task, model.form)
        return Descending.of(plan, data)
    if plan.training is TrainingKind.EXACT:
        solver, task = solver_of(plan), model.description.task
        return Solved(data, solver, task, feed=RandomBatches(data.retain, 1))
    recipe = model.recipe
    feed = RandomBatches(data.retain, recipe.batch_size, micro_batches=recipe.micro_batches)
    if plan.training is TrainingKind.PRIVATE:
        return Private(model, data, feed=feed, training=_private_training(plan))
    framed = mechanism_named(plan.mechanism).in_frame
    frame = frame_of(model.backbone, factory) if framed else None
    return Ordinary(model, data, feed=feed, frame=frame)


@dataclass(frozen=True)
class Ordinary:
    """Trained by the model's recipe on random batches."""

    model: ModelSpec
    data: RunData
    feed: Feed
    frame: ReferenceFrame | None
    dtype: torch.dtype | None = None

    def train(
        self,
        sealed: Sealed,
        noise: NoiseSource,  # noqa: ARG002 - this training has none
        on_progress: SealedProgress,
    ) -> None:
        """Train by the recipe."""
        recipe = self.model.recipe
        sealed.train(self.data.retain, recipe, epochs=recipe.epochs, on_progress=on_progress)


@dataclass(frozen=True)
class Descending:
    """Trained by descent; the noisy phase continues in the same cycle of batches."""

    descent: Descent
    training_steps: int
    start_std: float
    feed: Feed
    frame: ReferenceFrame | None = None
    dtype: torch.dtype | None = torch.float64

    @classmethod
    def of(cls, plan: Plan, data: RunData) -> "Descending":
        """Return the lineage described by a plan's settings."""
        settings = plan.settings
        feed = FixedBatches(
            data.retain,
            data.batch_of,
            batches=int(settings["batches"]),
            batch_size=int(settings["batch_size"]),
            position=0 if plan.history is None else History.from_json(plan.history).steps,
            loss_bound=settings.get("loss_bound"),
        )
        return cls(
            descent=Descent.from_settings(settings),
            training_steps=int(settings["training_steps"]),
            start_std=settings.get("start_std", 0.0),
            feed=feed,
        )

    def train(self, sealed: Sealed, noise: NoiseSource, on_progress: SealedProgress) -> None:
        """Take the training's steps, with noise if the mechanism has it."""
        sealed.descend(
            self.descent,
            self.feed,
            steps=self.training_steps,
            noise=noise,
            start_std=self.start_std,
            on_progress=on_progress,
        )


@dataclass(frozen=True)
class Private:
    """Trained with DP-SGD; forgetting takes no step, so the feed is unused."""

    model: ModelSpec
    data: RunData
    feed: Feed
    training: PrivateTraining
    frame: ReferenceFrame | None = None
    dtype: torch.dtype | None = None

    def train(self, sealed: Sealed, noise: NoiseSource, on_progress: SealedProgress) -> None:
        """Train with noise; its Poisson samples are of records in memory."""
        retain = self.data.retain
        if not isinstance(retain, Examples):
            raise RunFailedError("DP-SGD samples records in memory, and these are streamed")
        sealed.train_privately(
            retain, self.model.recipe, self.training, noise=noise, on_progress=on_progress
        )


@dataclass(frozen=True)
class Solved:
    """Computed by a solver, without a noisy phase, so the feed is unused."""

    data: RunData
    solver: Solver
    task: TaskSpec
    feed: Feed
    frame: ReferenceFrame | None = None
    dtype: torch.dtype | None = torch.float64

    def train(
        self,
        sealed: Sealed,
        noise: NoiseSource,  # noqa: ARG002 - it has none
        on_progress: SealedProgress,
    ) -> None:
        """Compute the weights."""
        sealed.solve(lambda network: self.solver.solve(network, self.data, self.task))
        on_progress(1, 1)


def _private_training(plan: Plan) -> PrivateTraining:
    return PrivateTraining(
        noise_multiplier=plan.settings["noise_multiplier"],
        gradient_clip=plan.settings["gradient_clip"],
        sampling_rate=plan.settings["sampling_rate"],
        steps=int(plan.settings["private_steps"]),
    )

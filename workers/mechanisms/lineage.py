"""The training of each kind of lineage, and the data of its noisy phase.

    ordinary     any network, trained by its recipe; unlearned in a reference frame, then fine-tuned
    descending   trained by descent on fixed batches, so that drift or noise can be accounted for
    private      trained with DP-SGD
    solved       a function of the retained records, computed anew in every run

Only mechanisms for the first fine-tune: in the second every gradient is part of what later
certificates count, in the third every noise-free gradient of a record that is still there would end
its privacy, and the fourth would not be such a function any more.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from app.accounting.histories.history import History
from app.domain.errors import RunFailedError
from app.domain.plan import Plan, TrainingKind
from app.domain.states import Phase
from app.planning.mechanisms.catalogue import mechanism_named
from workers.data.backbone import frame_of
from workers.data.loading import ModelSpec, RunData
from workers.mechanisms.catalogue import rule_of, solver_of
from workers.mechanisms.descent import Descent
from workers.mechanisms.rehearsal import require_one_loss
from workers.noise.generators import NoiseSource, SecureNoise
from workers.seal.certified import Certified
from workers.seal.sealed import Sealed, SealedProgress
from workers.training.dp_sgd.training import PrivateTraining, train_privately
from workers.training.examples import Examples
from workers.training.frame import ReferenceFrame
from workers.training.loop import TrainingProgress
from workers.training.noisy_phase import Feed, FixedBatches, NoisyProgress, RandomBatches, descend
from workers.training.seed import Seed
from workers.training.team import ALONE, Team, choose_device

Training = Callable[[Sealed, NoiseSource, SealedProgress], object]
"""Trains a sealed, fresh network on the retained records."""


@dataclass(frozen=True)
class Lineage:
    """What a run needs to know about its model's kind of lineage.

    Attributes:
        feed: the data of the noisy steps; unused where there are none.
        frame: the coordinates of the noisy steps; None for the weights themselves.
        dtype: of the network; None leaves it as built.
    """

    train: Training
    feed: Feed
    frame: ReferenceFrame | None = None
    dtype: torch.dtype | None = None


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
        return _descending(plan, data)
    if plan.training is TrainingKind.EXACT:
        return _solved(plan, model, data)
    recipe = model.recipe
    feed = RandomBatches(data.retain, recipe.batch_size, micro_batches=recipe.micro_batches)
    if plan.training is TrainingKind.PRIVATE:
        return Lineage(_private(plan, model, data), feed)
    framed = mechanism_named(plan.mechanism).in_frame

    def train(sealed: Sealed, _: NoiseSource, on_progress: SealedProgress) -> None:
        sealed.train(data.retain, recipe, epochs=recipe.epochs, on_progress=on_progress)

    return Lineage(train, feed, frame_of(model.backbone, factory) if framed else None)


@contextmanager
def sealing(
    lineage: Lineage,
    plan: Plan,
    model: ModelSpec,
    factory: Callable[[], nn.Module],
    team: Team = ALONE,
    seed: Seed | None = None,
) -> Iterator[tuple[Sealed, SecureNoise]]:
    """Yield a fresh network under a plan's target, and its noise; both are destroyed at the end."""
    device = choose_device()
    noise = SecureNoise(device)
    try:
        sealed = Sealed(
            factory,
            epsilon=plan.epsilon,
            delta=plan.delta,
            device=device,
            dtype=lineage.dtype,
            task=model.task,
            team=team,
            seed=seed,
        )
        try:
            yield sealed, noise
        finally:
            sealed.destroy()
    finally:
        noise.destroy()


def meet_target(
    lineage: Lineage,
    plan: Plan,
    sealed: Sealed,
    noise: NoiseSource,
    *,
    trains: bool,
    training: SealedProgress = lambda *_: None,
    noisy: NoisyProgress = lambda *_: None,
    phase: Callable[[Phase], AbstractContextManager[object]] = nullcontext,
) -> Certified:
    """Train a fresh network, or take a loaded one, until it meets its plan's target.

    Args:
        lineage: of the plan.
        plan: what is carried out.
        sealed: the network.
        noise: for its training and its noisy steps.
        trains: whether it is fresh.
        training: called after each step of its training.
        noisy: called after each noisy step.
        phase: entered with what is done.

    Raises:
        TargetNotMetError: it does not meet it.
        RunFailedError: there are no records, or training diverged.
    """
    if trains:
        with phase(Phase.TRAINING):
            lineage.train(sealed, noise, training)
    if mechanism_named(plan.mechanism).trains_anew:
        sealed.retrained()
    else:
        with phase(Phase.UNLEARNING):
            sealed.unlearn(
                rule_of(plan), lineage.feed, frame=lineage.frame, noise=noise, on_progress=noisy
            )
    return sealed.open()


def fine_tune(
    certified: Certified, model: ModelSpec, data: RunData, on_progress: TrainingProgress
) -> None:
    """Spend what the noisy steps have left of the plan's budget."""
    spent = certified.noisy_steps / data.retain.steps_per_epoch(model.recipe.batch_size)
    certified.fine_tune(
        data.retain,
        model.recipe,
        epochs=max(0.0, data.plan.budget_epochs - spent),
        held_out=data.held_out,
        on_progress=on_progress,
    )


def _descending(plan: Plan, data: RunData) -> Lineage:
    """Return training by descent; the noisy phase continues in the same cycle of batches."""
    settings = plan.settings
    feed = FixedBatches(
        data.retain,
        data.batch_of,
        batches=int(settings["batches"]),
        batch_size=int(settings["batch_size"]),
        position=0 if plan.history is None else History.from_json(plan.history).steps,
        loss_bound=settings.get("loss_bound"),
    )

    def train(sealed: Sealed, noise: NoiseSource, on_progress: SealedProgress) -> None:
        sealed.train_by(
            lambda network, report: descend(
                network,
                Descent.from_settings(settings).step_,
                feed,
                steps=int(settings["training_steps"]),
                noise=noise,
                on_progress=report,
                start_std=settings.get("start_std", 0.0),
            ),
            on_progress,
        )

    return Lineage(train, feed, dtype=torch.float64)


def _private(plan: Plan, model: ModelSpec, data: RunData) -> Training:
    """Return training with DP-SGD; its Poisson samples are of records in memory."""
    training = PrivateTraining(
        noise_multiplier=plan.settings["noise_multiplier"],
        gradient_clip=plan.settings["gradient_clip"],
        sampling_rate=plan.settings["sampling_rate"],
        steps=int(plan.settings["private_steps"]),
    )

    def train(sealed: Sealed, noise: NoiseSource, on_progress: SealedProgress) -> None:
        examples = data.retain
        if not isinstance(examples, Examples):
            raise RunFailedError("DP-SGD samples records in memory, and these are streamed")
        sealed.train_by(
            lambda network, report: train_privately(
                network, examples, model.recipe, training, noise=noise, on_progress=report
            ),
            on_progress,
        )

    return train


def _solved(plan: Plan, model: ModelSpec, data: RunData) -> Lineage:
    solver, task = solver_of(plan), model.description.task

    def train(sealed: Sealed, _: NoiseSource, on_progress: SealedProgress) -> None:
        sealed.train_by(lambda network, _: solver(network, data, task))
        on_progress(1, 1)

    return Lineage(train, RandomBatches(data.retain, 1), dtype=torch.float64)

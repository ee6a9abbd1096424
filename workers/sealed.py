"""Weights under the target: they cannot leave, in any form, until the guarantee meets it.

A trust state machine. ``Sealed`` is HELD from its making, MET once the noisy phase has met the
target, and SPENT after ``open`` or after any failure:

    Sealed(...) -> HELD --train, load--> HELD --unlearn--> MET --open--> SPENT, and a Certified
                   HELD --retrain, train_privately------> MET
                    any failure or destroy() -> SPENT, weights overwritten

Invariants:
 1. The target is fixed before there are weights and never changes.
 2. Weights live here alone: no attribute, repr, copy, pickle, ``state_dict`` or file reaches them,
    and no caller holds the module, because it is built inside.
 3. ``open`` is the only way out. It works once, and only if the guarantee meets the target; that
    guarantee comes from an odometer over the steps that were actually taken here, never from a
    caller.
 4. Before MET nothing computed from weights or records comes back: progress is a step count and
    the guarantee so far; an exception from inside is replaced by one that holds no frame, no
    context and no message of the original.
 5. Every failure spends the object. Another attempt begins at the lineage head with fresh noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar, final
from weakref import WeakKeyDictionary

import torch
from numpy.typing import NDArray
from torch import nn

from app.accounting import dp_sgd, retraining
from app.accounting.guarantees import Guarantee
from app.domain.errors import SealedStateError, TargetNotMetError
from app.domain.recipe import TrainingRecipe
from workers.mechanisms.frame import ReferenceFrame
from workers.noise import NoiseSource
from workers.noisy_phase import Mechanism, NoisyProgress, run_noisy_phase
from workers.scrubbing import from_caller, scrubbed
from workers.training.buffers import recompute_buffers
from workers.training.data import Examples
from workers.training.evaluate import Evaluation
from workers.training.loop import TrainingProgress
from workers.training.network import Network, Tensors
from workers.training.private import train_privately

Result = TypeVar("Result")
SealedProgress = Callable[[int, int], None]
"""Step taken (from 1) and all steps of a noise-free training; no loss before the target."""


@dataclass(frozen=True, eq=False, repr=False)
class _Met:
    """What the noisy phase leaves behind when it has met the target."""

    guarantee: Guarantee
    steps: int
    recompute_buffers: Callable[[], None] = lambda: None
    ends_training: bool = False


@dataclass(eq=False, repr=False)
class _Held:
    network: Network
    fresh: bool = True
    met: _Met | None = None


# Kept beside the objects and not in them: whoever inspects a Sealed finds nothing.
_HELD: WeakKeyDictionary["Sealed", _Held] = WeakKeyDictionary()
_OPENING: Final = object()


@final
class Sealed:
    """A freshly initialised network whose weights stay inside until (epsilon, delta) is met.

    Args:
        factory: builds the module; called once, here, under a fresh seed.
        epsilon: of the target.
        delta: of the target.
        device: where the weights live.

    Raises:
        PlanError: the architecture holds state that no mechanism covers.
    """

    __slots__ = ("__weakref__", "_delta", "_epsilon")

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        *,
        epsilon: float,
        delta: float,
        device: torch.device,
    ) -> None:
        self._epsilon = epsilon
        self._delta = delta
        _HELD[self] = _Held(Network(factory, device=device))

    def load(self, tensors: Tensors) -> None:
        """Replace the weights and buffers by those of the lineage head or of an upload.

        Raises:
            RunFailedError: the tensors do not fit the architecture, or are not finite.
            SealedStateError: the noisy phase has begun, or the object is spent.
        """
        held = self._require_held()
        held.fresh = False
        self._inside("loading", lambda: held.network.load(tensors))

    def train(
        self,
        examples: Examples,
        recipe: TrainingRecipe,
        *,
        epochs: float,
        on_progress: SealedProgress | None = None,
    ) -> int:
        """Train without noise; return the steps taken.

        Raises:
            RunFailedError: there are no examples, or training diverged.
            SealedStateError: the noisy phase has begun, or the object is spent.
        """
        held = self._require_held()
        held.fresh = False
        report = from_caller(on_progress)
        return self._inside(
            "training",
            lambda: held.network.train(
                examples,
                recipe,
                epochs=epochs,
                on_progress=lambda step, steps, _: report(step, steps),
            ),
        )

    def retrain(
        self,
        retain: Examples,
        recipe: TrainingRecipe,
        *,
        epochs: float,
        on_progress: SealedProgress | None = None,
    ) -> Guarantee:
        """Train the fresh initialisation on retained records alone; the guarantee is exact.

        Raises:
            RunFailedError: there are no records, or training diverged.
            SealedStateError: the network is not fresh any more, or the object is spent.
        """
        held = self._require_fresh()
        self.train(retain, recipe, epochs=epochs, on_progress=on_progress)
        held.met = _Met(retraining.account(), steps=0)
        return held.met.guarantee

    def train_privately(
        self,
        examples: Examples,
        recipe: TrainingRecipe,
        *,
        noise_multiplier: float,
        gradient_clip: float,
        sampling_rate: float,
        steps: int,
        group_size: int,
        noise: NoiseSource,
        on_progress: SealedProgress | None = None,
    ) -> Guarantee:
        """Train the fresh initialisation by DP-SGD; return the guarantee for a group of records.

        Whether it meets the target, ``open`` decides. What is opened cannot be trained further.

        Args:
            examples: all records of the training set, those of the group among them.
            recipe: optimiser, schedule and batch size.
            noise_multiplier: standard deviation of the noise, in units of the clip.
            gradient_clip: norm of one record's gradient.
            sampling_rate: chance of each record in each step; chosen without looking at records.
            steps: how many to take.
            group_size: how many records the guarantee is for.
            noise: fresh for this training.
            on_progress: called after each step; what it raises ends the run and reaches the caller.

        Raises:
            PlanError: the architecture has no gradient per record; the message names the layer.
            ParameterError, CalibrationError: the accountant refuses a parameter.
            SealedStateError: the network is not fresh any more, or the object is spent.
        """
        held = self._require_fresh()

        def work() -> _Met:
            taken = train_privately(
                held.network,
                examples,
                recipe,
                noise_multiplier=noise_multiplier,
                gradient_clip=gradient_clip,
                sampling_rate=sampling_rate,
                steps=steps,
                noise=noise,
                on_progress=from_caller(on_progress),
            )
            guarantee = dp_sgd.account(
                noise_multiplier=noise_multiplier,
                sampling_rate=sampling_rate,
                steps=taken,
                group_size=group_size,
            )
            return _Met(guarantee, steps=taken, ends_training=True)

        held.fresh = False
        held.met = self._inside("private training", work)
        return held.met.guarantee

    def unlearn(
        self,
        mechanism: Mechanism,
        retain: Examples,
        *,
        frame: ReferenceFrame,
        noise: NoiseSource,
        batch_size: int,
        on_progress: NoisyProgress | None = None,
    ) -> Guarantee:
        """Run the noisy phase until the target is met; return the guarantee.

        Args:
            mechanism: the update rule; its parameters do not depend on weights or records.
            retain: records to keep, and no others.
            frame: the reference frame of this architecture.
            noise: fresh for this run.
            batch_size: records per step.
            on_progress: called after each step; what it raises ends the run and reaches the caller.

        Raises:
            TargetNotMetError: the mechanism's parameters cannot meet the target.
            SealedStateError: the noisy phase has run already, or the object is spent.
            RunFailedError: there are no records to train on.
        """
        held = self._require_held()
        run = self._inside(
            "the noisy phase",
            lambda: run_noisy_phase(
                held.network,
                mechanism,
                retain,
                frame=frame,
                noise=noise,
                batch_size=batch_size,
                epsilon=self._epsilon,
                delta=self._delta,
                on_progress=from_caller(on_progress),
            ),
        )
        device = held.network.flat.device
        held.met = _Met(
            guarantee=run.guarantee(),
            steps=run.steps,
            recompute_buffers=lambda: recompute_buffers(
                held.network.module, lambda: retain.epoch(batch_size, device=device)
            ),
        )
        return held.met.guarantee

    def open(self) -> "Certified":
        """Give the weights out, certified, with buffers recomputed from the retained records.

        Raises:
            TargetNotMetError: the target is not met (yet); the object stays as it is.
            SealedStateError: the object is spent.
        """
        held = self._require()
        met = held.met
        if met is None or not met.guarantee.meets(epsilon=self._epsilon, delta=self._delta):
            raise TargetNotMetError("the weights have not met their target and stay sealed")
        self._inside("recomputing buffers", met.recompute_buffers)
        del _HELD[self]
        return Certified(
            _OPENING, held.network, met.guarantee, met.steps, ends_training=met.ends_training
        )

    def destroy(self) -> None:
        """Overwrite the weights and spend the object; a second call does nothing."""
        held = _HELD.pop(self, None)
        if held is not None:
            held.network.destroy()

    def _require(self) -> _Held:
        held = _HELD.get(self)
        if held is None:
            raise SealedStateError("these weights were opened or destroyed already")
        return held

    def _require_held(self) -> _Held:
        held = self._require()
        if held.met is not None:
            raise SealedStateError("these weights have been through their noisy phase already")
        return held

    def _require_fresh(self) -> _Held:
        held = self._require_held()
        if not held.fresh:
            raise SealedStateError("this training starts from a fresh initialisation")
        return held

    def _inside(self, what: str, work: Callable[[], Result]) -> Result:
        return scrubbed(what, work, on_failure=self.destroy)

    def __repr__(self) -> str:
        return "<Sealed: weights under their target>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SealedStateError("sealed weights cannot be copied, saved or sent")


@final
class Certified:
    """Weights that met their target. Whatever follows, without the forgotten records, keeps it.

    Only ``Sealed.open`` makes these.

    Attributes:
        guarantee: what holds for the weights and for everything derived from them.
        noisy_steps: how many steps were taken to get there.
    """

    def __init__(
        self,
        opening: object,
        network: Network,
        guarantee: Guarantee,
        steps: int,
        *,
        ends_training: bool = False,
    ) -> None:
        if opening is not _OPENING:
            raise SealedStateError("only Sealed.open makes certified weights")
        self._network = network
        self._ends_training = ends_training
        self.guarantee = guarantee
        self.noisy_steps = steps

    def fine_tune(
        self,
        retain: Examples,
        recipe: TrainingRecipe,
        *,
        epochs: float,
        on_progress: TrainingProgress | None = None,
    ) -> int:
        """Train on retained records, noise-free, with a fresh optimiser; return the steps taken.

        The loss may be shown: it is post-processing.

        Raises:
            RunFailedError: there are no records, or training diverged.
            SealedStateError: the weights come from DP-SGD. Its guarantee is for records that are
                still among the retained ones, so training on those without noise would end it.
        """
        if self._ends_training:
            raise SealedStateError("weights trained by DP-SGD cannot be fine-tuned without noise")
        return self._network.train(retain, recipe, epochs=epochs, on_progress=on_progress)

    def evaluate(self, examples: Examples) -> Evaluation:
        """Return accuracy and mean loss on examples.

        Raises:
            RunFailedError: there are no examples.
        """
        return self._network.evaluate(examples)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return copies of all parameters and buffers by their ``state_dict`` names, to save."""
        return self._network.tensors()

    def __repr__(self) -> str:
        return f"<Certified: {self._network.flat.size} parameters, {self.noisy_steps} noisy steps>"

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
    the guarantee so far; an audit's figure waits for ``Certified``; an exception from inside is
    replaced by one that holds no frame, no context and no message of the original.
 5. Every failure spends the object. Another attempt begins at the lineage head with fresh noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar, final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from app.accounting import dp_sgd, retraining
from app.accounting.guarantees import Guarantee
from app.domain.errors import SealedStateError, TargetNotMetError
from app.domain.recipe import TrainingRecipe
from workers.audit import membership_auc
from workers.certified import OPENING, Certified
from workers.mechanisms.frame import ReferenceFrame
from workers.noise import NoiseSource
from workers.noisy_phase import Mechanism, NoisyProgress, run_noisy_phase
from workers.scrubbing import from_caller, scrubbed
from workers.training.buffers import recompute_buffers
from workers.training.data import Examples
from workers.training.network import Network, Tensors
from workers.training.private import train_privately

__all__ = ["Certified", "Sealed", "SealedProgress"]

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
    factory: Callable[[], nn.Module]
    fresh: bool = True
    met: _Met | None = None
    auc_before: float | None = None


# Kept beside the objects and not in them: whoever inspects a Sealed finds nothing.
_HELD: WeakKeyDictionary["Sealed", _Held] = WeakKeyDictionary()


@final
class Sealed:
    """A freshly initialised network whose weights stay inside until (epsilon, delta) is met.

    Args:
        factory: builds the module; called here, under a fresh seed.
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
        _HELD[self] = _Held(Network(factory, device=device), factory)

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

    def audit(
        self, *, forgotten: Examples, held_out: Examples, start: Tensors | None = None
    ) -> None:
        """Measure a membership-inference attack; the figure stays here until the target is met.

        Nothing that follows depends on it. ``Certified.auc_before`` shows it.

        Args:
            forgotten: records that the weights may have been trained on.
            held_out: records that they were not trained on.
            start: attack these weights in place of those held here, which stay as they are.

        Raises:
            RunFailedError: there are no records to compare, or ``start`` does not fit.
            SealedStateError: the noisy phase has begun, or the object is spent.
        """
        held = self._require_held()

        def work() -> float:
            if start is None:
                return membership_auc(held.network, forgotten=forgotten, held_out=held_out)
            other = Network(held.factory, device=held.network.flat.device)
            try:
                other.load(start)
                return membership_auc(other, forgotten=forgotten, held_out=held_out)
            finally:
                other.destroy()

        held.auc_before = self._inside("the audit", work)

    def open(self) -> Certified:
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
            OPENING,
            held.network,
            met.guarantee,
            met.steps,
            ends_training=met.ends_training,
            auc_before=held.auc_before,
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

"""Weights that have not met their target: they cannot leave, in any form, until they do.

A trust state machine. ``Sealed`` is HELD after construction, MET once the noisy phase has met the
target, and SPENT after ``open`` or after any failure:

    Sealed(...) -> HELD --train, load--> HELD --unlearn----> MET --open--> SPENT, and a Certified
                   HELD --train--------> HELD --retrained--> MET
                    train is also train_by
                    any failure or destroy() -> SPENT, weights overwritten

Invariants:
 1. The target is fixed before there are weights and never changes.
 2. Weights live only here: no attribute, repr, copy, pickle, ``state_dict`` or file reaches them,
    and no caller holds the module, because it is built inside: only the function that
    ``train_by`` is given, while it trains.
 3. ``open`` is the only way out. It works once, and only if the guarantee meets the target; that
    guarantee comes from an odometer over the steps taken here, never from a caller.
 4. Before MET, nothing computed from weights or records is returned: progress is a step count and
    the guarantee so far; an exception from inside is replaced by one without its frames, context
    and message.
 5. Every failure spends the object. Another attempt begins at the lineage head with fresh noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NoReturn, TypeVar, final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from app.accounting import exact
from app.accounting.guarantees import ExactGuarantee, Guarantee
from app.domain.errors import SealedStateError, TargetNotMetError
from app.domain.recipes import TrainingRecipe
from workers.noise.generators import NoiseSource
from workers.seal.certified import OPENING, Certified
from workers.seal.scrubbing import from_caller, scrubbed
from workers.training.examples import Records
from workers.training.frame import ReferenceFrame
from workers.training.networks.buffers import recompute_buffers
from workers.training.networks.network import Network, Tensors
from workers.training.noisy_phase import Feed, NoisyProgress, Rule, run_noisy_phase
from workers.training.seed import Seed
from workers.training.tasks.built_in import CLASSIFICATION
from workers.training.tasks.task import Task
from workers.training.team import ALONE, Team

__all__ = ["Certified", "Sealed", "SealedProgress"]

Result = TypeVar("Result")
SealedProgress = Callable[[int, int], None]
"""Step taken (from 1) and all steps of training without noise; no loss before the target is met."""


@dataclass(frozen=True, eq=False, repr=False)
class _Met:
    """The result of a noisy phase that has met the target."""

    guarantee: Guarantee
    steps: int
    recompute_buffers: Callable[[], None]


class _Origin(Enum):
    FRESH = auto()
    TRAINED_HERE = auto()
    OTHER = auto()


@dataclass(eq=False, repr=False)
class _Held:
    network: Network
    origin: _Origin = _Origin.FRESH
    met: _Met | None = None


# Outside the objects, so that inspecting a Sealed shows nothing.
_HELD: WeakKeyDictionary["Sealed", _Held] = WeakKeyDictionary()


@final
class Sealed:
    """A freshly initialised network whose weights stay inside until (epsilon, delta) is met.

    The factory is called here, with a fresh seed, or with that of a training without noise, which
    is to be computed again. Weights and buffers are of ``dtype``, float32 or
    float64; None leaves them as built. Of a ``team`` each process has such an object, and does with
    it what the leading one does with its own. A method for which the object is not in the right
    state raises ``SealedStateError``.

    Raises:
        PlanError: the architecture has state that no mechanism covers.
    """

    __slots__ = ("__weakref__", "_delta", "_epsilon")

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        *,
        epsilon: float,
        delta: float,
        device: torch.device,
        task: Task = CLASSIFICATION,
        dtype: torch.dtype | None = None,
        team: Team = ALONE,
        seed: Seed | None = None,
    ) -> None:
        self._epsilon = epsilon
        self._delta = delta
        network = Network(factory, device=device, task=task, dtype=dtype, team=team, seed=seed)
        _HELD[self] = _Held(network)

    def load(self, tensors: Tensors | None) -> None:
        """Load the weights and buffers of the lineage head or of an upload.

        A process that does not lead gives None, and gets what it holds of them.

        Raises:
            RunFailedError: the tensors do not fit the architecture, or are not finite.
        """
        held = self._require_held()
        held.origin = _Origin.OTHER
        self._inside("loading", lambda: held.network.load(tensors))

    def train(
        self,
        examples: Records,
        recipe: TrainingRecipe,
        *,
        epochs: float,
        on_progress: SealedProgress | None = None,
    ) -> int:
        """Train without noise; return the steps taken.

        Raises:
            RunFailedError: there are no examples, or training diverged.
        """
        held = self._require_held()
        fresh = held.origin is _Origin.FRESH
        held.origin = _Origin.TRAINED_HERE if fresh else _Origin.OTHER
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

    def train_by(
        self,
        how: Callable[[Network, SealedProgress], object],
        on_progress: SealedProgress | None = None,
    ) -> None:
        """Train by a function that changes the network's weights by retained records alone.

        An exception of ``on_progress`` ends the run and reaches the caller.

        Raises:
            PlanError: the function cannot train this architecture.
            RunFailedError: it failed.
        """
        held = self._require_held()
        if held.origin is not _Origin.FRESH:
            raise SealedStateError("training starts from a fresh initialisation")
        held.origin = _Origin.TRAINED_HERE
        report = from_caller(on_progress)
        self._inside("training", lambda: how(held.network, report))

    def retrained(self) -> Guarantee:
        """Declare the training a retraining on retained records only: the guarantee is exact."""
        held = self._require_held()
        if held.origin is not _Origin.TRAINED_HERE:
            raise SealedStateError("retraining starts from a fresh initialisation")
        held.met = _Met(
            ExactGuarantee(terms=exact.RETRAINING), steps=0, recompute_buffers=lambda: None
        )
        return held.met.guarantee

    def unlearn(
        self,
        rule: Rule,
        feed: Feed,
        *,
        frame: ReferenceFrame | None,
        noise: NoiseSource,
        on_progress: NoisyProgress | None = None,
    ) -> Guarantee:
        """Run the noisy phase until the target is met; return the guarantee.

        The rule's parameters do not depend on weights or records; the feed has batches of records
        to keep, and of no others. An exception of ``on_progress`` ends the run and reaches the
        caller.

        Raises:
            TargetNotMetError: the rule's parameters cannot meet the target.
            RunFailedError: there are no records to train on.
        """
        held = self._require_held()
        run = self._inside(
            "the noisy phase",
            lambda: run_noisy_phase(
                held.network,
                rule,
                feed,
                frame=frame,
                noise=noise,
                epsilon=self._epsilon,
                delta=self._delta,
                on_progress=from_caller(on_progress),
            ),
        )
        guarantee = run.guarantee()
        if guarantee is None:
            self.destroy()
            raise TargetNotMetError("the noisy phase ended without a guarantee")
        device = held.network.flat.device
        held.met = _Met(
            guarantee=guarantee,
            steps=run.steps,
            recompute_buffers=lambda: recompute_buffers(
                held.network.module,
                held.network.task,
                lambda: held.network.team.same(feed.once(device)),
            ),
        )
        return guarantee

    def open(self) -> Certified:
        """Return the certified weights, with buffers recomputed from the retained records.

        Raises:
            TargetNotMetError: the target is not met (yet); the object stays unchanged.
        """
        held = self._require()
        met = held.met
        if met is None or not met.guarantee.meets(epsilon=self._epsilon, delta=self._delta):
            raise TargetNotMetError("the weights have not met their target and stay sealed")
        self._inside("recomputing buffers", met.recompute_buffers)
        del _HELD[self]
        return Certified(OPENING, held.network, met.guarantee, met.steps)

    def destroy(self) -> None:
        """Overwrite the weights and spend the object; safe to repeat."""
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

    def _inside(self, what: str, work: Callable[[], Result]) -> Result:
        return scrubbed(what, work, on_failure=self.destroy)

    def __repr__(self) -> str:
        return "<Sealed: weights under their target>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SealedStateError("sealed weights cannot be copied, saved or sent")

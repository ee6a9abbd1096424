"""The input that planning needs about a model, read from the ledger."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol

from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, ParameterError
from app.domain.heads import linear_head, ridge_head
from app.domain.plan import TrainingKind
from app.domain.recipes.recipe import TrainingRecipe
from app.domain.states import WeightsSource
from app.planning.shape import ConvexShape, DpTrainingShape, EnsembleShape, ModelShape, RidgeShape
from app.planning.tracking import Tracking
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.membership import Membership, fixed_batches, membership_of
from app.registry.tables import ModelRow
from app.registry.tasks import task_of


class TrainingRecord(NamedTuple):
    """A record that a lineage is trained on; it may be forgotten by now.

    ``member`` is which member of an ensemble learns from it.
    """

    seq: int
    key: bytes
    forgotten_epoch: int | None
    member: int = 0

    def forgotten_after(self, epoch: int) -> bool:
        """Return whether it was forgotten later than ``epoch``."""
        return self.forgotten_epoch is not None and self.forgotten_epoch > epoch

    def was_there(self, epoch: int) -> bool:
        """Return whether a training that began at ``epoch`` read it."""
        return self.forgotten_epoch is None or self.forgotten_after(epoch)


class TrainingSet:
    """The records of one model in one transaction, read once and on demand.

    Records forgotten later than the epoch ``as_of`` count as not forgotten. ``membership`` is of
    a training that is going; by default that of the model's lineage.
    """

    def __init__(
        self,
        session: Session,
        model: ModelRow,
        membership: Membership | None = None,
        *,
        as_of: int | None = None,
    ) -> None:
        membership = membership or membership_of(model)
        if membership is None:
            raise ConflictError("the model has no training set yet")
        self.membership = membership
        self._session = session
        self._dataset_id = model.dataset_id
        self._as_of = math.inf if as_of is None else as_of
        self._batches: dict[tuple[int, int], dict[int, int]] = {}

    @property
    def records(self) -> list[TrainingRecord]:
        """Every record that the model is trained on, including forgotten ones."""
        return self._split[0]

    @property
    def held_out(self) -> list[TrainingRecord]:
        """Every record held out for evaluation, including forgotten ones."""
        return self._split[1]

    def batches(self, batch_size: int, *, begun_at_epoch: int) -> dict[int, int]:
        """Return the fixed batch, by its sequence number, of every record that a training read."""
        which = batch_size, begun_at_epoch
        if which not in self._batches:
            keys = ((each.seq, each.key) for each in self.records if each.was_there(begun_at_epoch))
            self._batches[which] = fixed_batches(self.membership, keys, batch_size=batch_size)
        return self._batches[which]

    def concerned(self, *, after_epoch: int) -> frozenset[int]:
        """Return which members of an ensemble learned from records forgotten after an epoch."""
        return frozenset(record.member for record in self.forgotten_after(after_epoch))

    @property
    def retained(self) -> int:
        """How many records there are to learn from."""
        return sum(record.forgotten_epoch is None for record in self.records)

    def read(self, begun_at_epoch: int, /) -> int:
        """Return how many a training that began at an epoch read."""
        return sum(record.was_there(begun_at_epoch) for record in self.records)

    def forgotten_after(self, epoch: int) -> list[TrainingRecord]:
        """Return those to learn from that were forgotten after an epoch."""
        return [record for record in self.records if record.forgotten_after(epoch)]

    def by_batch(
        self, records: Iterable[TrainingRecord], batch_size: int, *, begun_at_epoch: int
    ) -> Counter[int]:
        """Count records by the fixed batch of the training that read them."""
        batch_of = self.batches(batch_size, begun_at_epoch=begun_at_epoch)
        return Counter(batch_of[record.seq] for record in records)

    @cached_property
    def _split(self) -> tuple[list[TrainingRecord], list[TrainingRecord]]:
        membership = self.membership
        split: tuple[list[TrainingRecord], list[TrainingRecord]] = ([], [])
        found = datasets.records_through(self._session, self._dataset_id, membership.through)
        for record in found:
            if membership.includes(record):
                key, ended = record.record_key, record.forgotten_epoch
                known = None if ended is None or ended > self._as_of else ended
                member = membership.member_of(key, record.subject_key)
                split[membership.is_held_out(record)].append(
                    TrainingRecord(record.seq, key, known, member)
                )
        return split


class Counted(Protocol):
    """What planning asks about the records of a lineage; see ``TrainingSet``."""

    @property
    def retained(self) -> int:
        """How many records there are to learn from."""

    def read(self, begun_at_epoch: int, /) -> int:
        """Return how many a training that began at an epoch read."""

    def forgotten_after(self, epoch: int) -> Sequence[TrainingRecord]:
        """Return those to learn from that were forgotten after an epoch."""

    def by_batch(
        self, records: Iterable[TrainingRecord], batch_size: int, *, begun_at_epoch: int
    ) -> Counter[int]:
        """Count records by the fixed batch of the training that read them."""


def shape_of(
    session: Session,
    model: ModelRow,
    lineage: Counted | None,
    *,
    dimension: int | None = None,
    anew: bool = False,
) -> ModelShape:
    """Return the size of a model's next run; ``dimension`` counts its network's weights.

    ``anew`` is for a run that trains a new lineage, whatever there is. Without a ``lineage`` the
    numbers are those to expect.
    """
    recipe = TrainingRecipe.from_json(model.recipe)
    remembered, _, _ = datasets.counts(session, model.dataset_id)
    shape = ModelShape(
        retained=max(1, round(remembered * (1 - recipe.held_out_fraction))),
        batch_size=recipe.batch_size,
        recipe_epochs=recipe.epochs,
        dimension=dimension,
        earlier_releases=registry.next_number(session, model.id) - 1,
        trained_here=model.weights_source == WeightsSource.TRAIN,
        is_spent=model.is_spent and not anew,
        begins_again=anew or model.head_version_id is None,
        convex=_linear_head(model),
        ridge=_ridge_head(model),
        ensemble=_ensemble(model),
        rough=task_of(model).rough,
    )
    if lineage is None:
        return shape
    if shape.is_new:
        records = max(1, lineage.read(0))
        return replace(shape, retained=records, records=records)
    head = registry.head_version(session, model)
    if shape.ensemble is not None and head is not None:
        forgotten = lineage.forgotten_after(head.covers_epoch)
        concerned = len({record.member for record in forgotten})
        ensemble = replace(shape.ensemble, concerned=concerned or shape.ensemble.concerned)
        shape = replace(shape, ensemble=ensemble)
    begun_at_epoch = 0
    if model.tracking is not None:
        tracking = Tracking.from_json(model.tracking)
        begun_at_epoch = tracking.begun_at_epoch
        covered = begun_at_epoch if head is None else head.covers_epoch
        shape = _tracked(shape, tracking, covered, lineage)
    # A linear head may be trained anew, in batches of exactly the retained records.
    read = lineage.read(begun_at_epoch)
    return replace(shape, retained=max(1, lineage.retained), records=max(1, read))


def _tracked(shape: ModelShape, tracking: Tracking, covered: int, lineage: Counted) -> ModelShape:
    """Complete the shape of a tracked lineage with what it has to forget now."""
    begun = tracking.begun_at_epoch
    forgotten = lineage.read(begun) - lineage.retained
    new = lineage.forgotten_after(max(begun, covered))
    history = tracking.history
    if history is not None and new:
        try:
            history = history.after_request(
                lineage.by_batch(new, history.recipe.batch_size, begun_at_epoch=begun)
            )
        except ParameterError:
            history = None  # it is full; nothing can be added, but retraining begins a new one
    return replace(
        shape,
        forgotten=forgotten,
        newly_forgotten=len(new),
        dp_training=_dp_training(tracking, forgotten=forgotten),
        tracking=replace(tracking, history=history),
    )


def _linear_head(model: ModelRow) -> ConvexShape | None:
    """Return the constants that the service enforces; None unless such a head is trained here."""
    trained_here = model.weights_source == WeightsSource.TRAIN
    if model.architecture["name"] != linear_head.NAME or not trained_here:
        return None
    recipe = TrainingRecipe.from_json(model.recipe)
    bounds = linear_head.bounds_of(task_of(model))
    return ConvexShape(
        lipschitz=bounds.lipschitz,
        smoothness=bounds.smoothness,
        weight_decay=recipe.weight_decay,
        learning_rate=recipe.learning_rate,
    )


def _ridge_head(model: ModelRow) -> RidgeShape | None:
    """Return a ridge head's options; None for other architectures."""
    if model.architecture["name"] != ridge_head.NAME:
        return None
    return RidgeShape(**model.architecture["options"])


def _ensemble(model: ModelRow) -> EnsembleShape | None:
    """Return how many networks an ensemble averages; None for other architectures."""
    members = model.architecture.get("members")
    return None if members is None else EnsembleShape(members)


def _dp_training(tracking: Tracking, *, forgotten: int) -> DpTrainingShape | None:
    settings = tracking.settings
    if tracking.training is not TrainingKind.PRIVATE:
        return None
    return DpTrainingShape(
        noise_multiplier=settings["noise_multiplier"],
        sampling_rate=settings["sampling_rate"],
        steps=int(settings["private_steps"]),
        forgotten=forgotten,
    )

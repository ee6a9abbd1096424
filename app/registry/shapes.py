"""The input that planning needs about a model, read from the ledger."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from sqlalchemy.orm import Session

from app.domain.architectures.ensemble import Member, out_of
from app.domain.errors import ConflictError, ParameterError
from app.domain.heads import linear_head, ridge_head
from app.domain.plan import TrainingKind
from app.domain.recipes.recipe import TrainingRecipe
from app.domain.states import WeightsSource
from app.planning.shape import ConvexShape, DpTrainingShape, EnsembleShape, ModelShape, RidgeShape
from app.planning.tracking import Tracking
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.repository import KeyedRecord
from app.registry.membership import Membership, fixed_batches, membership_of
from app.registry.tables import ModelRow
from app.registry.tasks import task_of

_NEXT_EPOCH = 2**63


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
    a training that is going; by default that of the model's lineage. Records numbered in
    ``forgetting`` count as forgotten last of all, as if a request had named them.
    """

    def __init__(
        self,
        session: Session,
        model: ModelRow,
        membership: Membership | None = None,
        *,
        as_of: int | None = None,
        forgetting: Collection[int] = (),
    ) -> None:
        membership = membership or membership_of(model)
        if membership is None:
            raise ConflictError("the model has no training set yet")
        self.membership = membership
        self._session = session
        self._dataset_id = model.dataset_id
        self._as_of = math.inf if as_of is None else as_of
        self._forgetting = forgetting
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
        return frozenset(
            record.member for record in self.records if record.forgotten_after(after_epoch)
        )

    @property
    def is_emptied(self) -> bool:
        """Whether records were forgotten and none is left to learn from; that stays so."""
        if self.survivors(1):
            return False
        learned = [*self.records, *(self.held_out if self.membership.learns_from_held_out else ())]
        return any(record.forgotten_epoch is not None for record in learned)

    def survivors(self, most: int) -> list[int]:
        """Return the numbers of some records to learn from that are not forgotten, if any is."""
        through = self.membership.through
        with closing(
            datasets.remembered_through(self._session, self._dataset_id, through)
        ) as remembered:
            lasting = (record.seq for record in remembered if self._lasts(record))
            return list(islice(lasting, most))

    def lasting(self, seqs: Collection[int]) -> list[int]:
        """Return those of the records with these numbers that the lineage still learns from."""
        found = datasets.records_numbered(self._session, seqs)
        return [record.seq for record in found if self._lasts(record)]

    def _lasts(self, record: KeyedRecord) -> bool:
        included = record.forgotten_epoch is None and self.membership.includes(record)
        return included and not self.membership.is_held_out(record)

    @cached_property
    def _split(self) -> tuple[list[TrainingRecord], list[TrainingRecord]]:
        membership = self.membership
        split: tuple[list[TrainingRecord], list[TrainingRecord]] = ([], [])
        found = datasets.records_through(self._session, self._dataset_id, membership.through)
        for record in found:
            if membership.includes(record):
                key, ended = record.record_key, record.forgotten_epoch
                known = None if ended is None or ended > self._as_of else ended
                if known is None and record.seq in self._forgetting:
                    known = _NEXT_EPOCH
                member = membership.member_of(key, record.subject_key)
                split[membership.is_held_out(record)].append(
                    TrainingRecord(record.seq, key, known, member)
                )
        return split


def shape_of(
    session: Session,
    model: ModelRow,
    training_set: TrainingSet | None = None,
    *,
    dimension: int | None = None,
    anew: bool = False,
) -> ModelShape:
    """Return the size of a model's next run; ``dimension`` counts its network's weights.

    ``anew`` is for a run that trains a new lineage, whatever there is. Records are counted where
    ``training_set`` is given: what a run does may follow from those alone that it may learn from.
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
    counts = training_set is not None or model.tracking is not None or shape.convex is not None
    if training_set is None and not anew and membership_of(model) is not None:
        training_set = TrainingSet(session, model)
    if shape.is_new:
        return _new(shape, training_set)
    if training_set is not None and shape.ensemble is not None:
        return _with_concerned(shape, session, model, training_set)
    if training_set is None or not counts:
        return shape
    if model.tracking is not None:
        shape = _tracked(shape, session, model, training_set)
    # A linear head may be trained anew, in batches of exactly the retained records.
    begun_at_epoch = 0 if shape.tracking is None else shape.tracking.begun_at_epoch
    return _counted(shape, training_set.records, begun_at_epoch=begun_at_epoch)


def _counted(
    shape: ModelShape, records: Sequence[TrainingRecord], *, begun_at_epoch: int = 0
) -> ModelShape:
    """Count the records of a training and those left of them, in place of the expected numbers."""
    return replace(
        shape,
        retained=max(1, sum(record.forgotten_epoch is None for record in records)),
        records=max(1, sum(record.was_there(begun_at_epoch) for record in records)),
    )


def _new(shape: ModelShape, training_set: TrainingSet | None) -> ModelShape:
    """Complete the shape of an untrained lineage."""
    if training_set is None:
        return shape
    records = max(1, len(training_set.records))
    return replace(shape, retained=records, records=records)


def _tracked(
    shape: ModelShape, session: Session, model: ModelRow, training_set: TrainingSet
) -> ModelShape:
    """Complete the shape of a tracked lineage with what it has to forget now."""
    tracking = Tracking.from_json(model.tracking or {})
    records = training_set.records
    head = registry.head_version(session, model)
    covered = tracking.begun_at_epoch if head is None else head.covers_epoch
    gone = [record for record in records if record.forgotten_after(tracking.begun_at_epoch)]
    new = [record for record in gone if record.forgotten_after(covered)]
    history = tracking.history
    if history is not None and new:
        batch_of = training_set.batches(
            history.recipe.batch_size, begun_at_epoch=tracking.begun_at_epoch
        )
        try:
            history = history.after_request(Counter(batch_of[record.seq] for record in new))
        except ParameterError:
            history = None  # it is full; nothing can be added, but retraining begins a new one
    return replace(
        shape,
        forgotten=len(gone),
        newly_forgotten=len(new),
        dp_training=_dp_training(tracking, forgotten=len(gone)),
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


def _with_concerned(
    shape: ModelShape, session: Session, model: ModelRow, training_set: TrainingSet
) -> ModelShape:
    """Count a lineage's records, and the members that it has to train anew."""
    head = registry.head_version(session, model)
    if shape.ensemble is None or head is None:
        return shape
    out = out_of(map(Member.from_json, head.members or ()))
    concerned = len(training_set.concerned(after_epoch=head.covers_epoch) - out.keys())
    ensemble = replace(
        shape.ensemble, concerned=concerned or shape.ensemble.concerned, out=len(out)
    )
    return replace(_counted(shape, training_set.records), ensemble=ensemble)


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

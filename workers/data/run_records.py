"""Loads a run's records, or arranges that they are read as they are needed.

What a run needs is known before it reads a record: where that is more than the worker may use, the
records are streamed, and where even that is too much, the run is refused with both numbers.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import CorruptObjectError, GoneError, RunFailedError
from app.domain.plan import Plan, TrainingKind
from app.domain.states import RunKind
from app.ledger import member_trainings, selections
from app.ledger.selections import Selection
from app.planning.mechanisms.catalogue import mechanism_named, mechanism_of
from app.planning.mechanisms.sufficient_statistics import SufficientStatistics
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.repository import stock_of
from app.registry.statistics_file import StatisticsFile
from app.registry.tables import ModelRow
from app.services import Services
from workers.data.loading import ModelSpec, Readers, RunData, readers_for
from workers.data.member_records import member_records
from workers.data.memory import Footprint, Needs, allowance, give_back, in_words
from workers.data.shards import Selected, read_records, read_shards
from workers.data.streaming import Streamed, Survey
from workers.leases.lease import Lease
from workers.leases.outages import outlast_outages
from workers.training.exact.statistics import Targets
from workers.training.exact.summing import Quantiser, Summed, sums_less, sums_over
from workers.training.part import Part, in_order

_log = logging.getLogger("expunge.worker")
_ADVICE = "lower batch_size, run it on a larger machine"
_NONE: Final = np.empty(0, dtype=np.int64)
_SHARE_HELD = 4
"""What part of the allowance records to evaluate on may take before they are streamed, too."""


def load_records(
    services: Services, lease: Lease, model: ModelSpec, *, dimension: int, devices: int = 1
) -> RunData:
    """Read records, fix which of them the run may use, and drop all others.

    A run that has sums to subtract from reads only what left them, and what it evaluates on. Any
    other reads the whole dataset, and the selection comes last, so that records forgotten while
    shards are read are left out; but where records are streamed, it comes first, since they are
    read for as long as the run goes on. ``dimension`` is the number of trained weights, which the
    plan needs; the memory that belongs to them is divided among ``devices``.

    Raises:
        RunFailedError: no record is left to train on, or the run needs more memory than it may use.
        LeaseLostError: another worker holds the run.
    """
    return _Loading(services, lease, model, dimension, devices).load()


@dataclass(frozen=True)
class _Loading:
    services: Services
    lease: Lease
    model: ModelSpec
    dimension: int
    devices: int

    @cached_property
    def readers(self) -> Readers:
        return readers_for(self.services, self.model, check=self.lease.check)

    @cached_property
    def allowed(self) -> int:
        return allowance(self.services.settings.worker_memory)

    def load(self) -> RunData:
        lease, model, allowed = self.lease, self.model, self.allowed
        stored = None if lease.kind is RunKind.TRAIN else self._stored_sums()
        selection = None
        if stored is not None:
            selection = self._begin()
            data = self._less_what_left(selection, stored)
            if data is not None:
                return data
        rows_of = self._rows_of_shards()
        if model.architecture.of is not None:
            return self._by_member([shard_id for shard_id, rows in rows_of.items() if rows])
        footprint = self._footprint(Plan.from_json(lease.plan))
        if not footprint.fits(allowed):  # perhaps for a record that was forgotten meanwhile
            selection = selection or self._begin(rows_of)
            footprint = self._footprint(selection.plan)
        needs = footprint.in_memory()
        _log.info("run %s needs %s, and may use %s", lease.run_id, needs, in_words(allowed))
        if selection is None or footprint.fits(allowed):
            if needs.total > allowed:
                needs.refuse(allowed, why="the run", advice=_ADVICE)
            shards = read_shards(self.services, model.dataset_id, self.readers.first)
            return selected(model, selection or self._begin(rows_of), shards)
        if _samples(lease, selection.plan):
            needs.refuse(
                allowed,
                why="DP-SGD samples all records in every step, and so holds them in memory: it",
                advice="use a mechanism without private training, run it on a larger machine",
            )
        return self._streamed(selection, [shard_id for shard_id, rows in rows_of.items() if rows])

    def _rows_of_shards(self) -> dict[str, int]:
        with self.services.database.transaction() as session:
            shards = datasets.shards(session, self.model.dataset_id)
            return {shard.id: shard.rows for shard in shards}

    def _footprint(self, plan: Plan) -> Footprint:
        return footprint_of(self.services, self.model, plan, self.dimension, self.devices)

    def _begin(self, shards: Collection[str] = ()) -> Selection:
        """Return the records that the run may use; ``shards`` were read by one that trains."""
        selection = selections.begin(
            self.services.database,
            self.lease.run_id,
            self.lease.fencing_token,
            dimension=self.dimension,
            shards=shards,
        )
        if not len(selection.retain):
            raise RunFailedError(
                "no record is left to train on: push more records, or lower held_out_fraction"
            )
        return selection

    def _stored_sums(self) -> StatisticsFile | None:
        """Return the sums that belong to the head; None if they are gone or damaged."""
        with self.services.database.transaction() as session:
            head = registry.head_version(session, session.get_one(ModelRow, self.lease.model_id))
            blob_id = None if head is None else head.statistics_blob_id
        if blob_id is None:
            return None
        try:
            return StatisticsFile.from_bytes(self.services.blobs.read(blob_id))
        except (GoneError, CorruptObjectError):
            return None

    def _less_what_left(self, selection: Selection, stored: StatisticsFile) -> RunData | None:
        """Return the data of a run that subtracts; None where that cannot be done."""
        model, quantiser = self.model, _quantiser(self.model, selection)
        if quantiser is None:
            return None
        needed = in_order([stored.without(selection.retain), selection.held_out])
        parts = read_records(self.services, model.dataset_id, self.readers.first, needed)
        summed = None if parts is None else sums_less(parts, selection.retain, quantiser, stored)
        if parts is None or summed is None:
            return None
        return _run_data(model, selection, parts, summed)

    def _parts(
        self,
        shard_ids: Iterable[str],
        wanted: NDArray[np.int64],
        kept: Sequence[Selected],
        found: Survey | None = None,
    ) -> Iterator[Part]:
        """Yield what all shards hold of these records, which are read for the first time.

        What is kept of them is taken here.
        """
        for shard_id in shard_ids:
            part = outlast_outages(self.lease.check, partial(self.readers.first, shard_id, wanted))
            for each in kept:
                each.take(part)
            if found is not None:
                found.take(shard_id, part)
            self.lease.check()
            yield part
        give_back()  # not before: the next shard has the memory of the last

    def _by_member(self, shards: Sequence[str]) -> RunData:
        """Return an ensemble's records: what it is measured on, and what reads each member's.

        Other workers are asked for help before the records are read, unless this stores what they
        have to read. Nothing is decoded of other members' records. All others are, once here: one
        that cannot be encoded fails the run.

        Raises:
            RunFailedError: the run needs more memory than it may use.
        """
        services, model, check = self.services, self.model, self.lease.check
        selection = self._begin(shards)
        held_out = Selected(selection.held_out, model.form)
        whole = self.dimension * model.architecture.networks
        members = member_records(
            services,
            model.dataset_id,
            model.form,
            selection.members,
            footprint_of(services, model, selection.plan, whole),
            self.readers.again,
            allowed=self.allowed,
            check=check,
            measured=len(selection.held_out),
        )
        ask = partial(outlast_outages, check, partial(self._ask_for_help, members.seqs))
        stores = self.readers.first is not self.readers.again  # features, which others must find
        if not stores:
            ask()
        wanted = in_order([selection.held_out, *members.seqs.values()])
        members.read(self._parts(shards, wanted, [held_out]))
        if stores:
            ask()
        return RunData(
            retain=Selected(_NONE, model.form).examples(),
            held_out=held_out.examples(),
            plan=selection.plan,
            batch_of=_NONE,
            members=members,
        )

    def _ask_for_help(self, members: Collection[int]) -> None:
        with self.services.database.transaction() as session:
            member_trainings.begin(session, self.lease.run_id, self.lease.fencing_token, members)

    def _streamed(self, selection: Selection, shard_ids: Sequence[str]) -> RunData:
        """Return a run's records, to be read as they are needed.

        All of them are read once before: one that cannot be encoded fails the run here, and a
        frozen backbone's features are stored.

        Raises:
            RunFailedError: the run needs more memory than it may use.
        """
        model, lease = self.model, self.lease
        groups = [selection.retain, selection.held_out]
        measured = len(groups[1])
        footprint = self._footprint(selection.plan)
        window, holds = _arranged(footprint, self.allowed, measured=measured)
        _log.info("run %s streams its records, %d at a time", lease.run_id, window)
        found = Survey(groups)
        kept = [Selected(groups[1], model.form)] if holds else []
        parts = self._parts(shard_ids, in_order(groups), kept, found)
        quantiser = _quantiser(model, selection)
        summed = None if quantiser is None else sums_over(parts, selection.retain, quantiser)
        deque(parts, maxlen=0)
        retain, streamed = (
            Streamed(
                group,
                model.form,
                holdings,
                self.readers.again,
                window=window,
                check=lease.check,
                all_there=group is groups[0],
            )
            for group, holdings in zip(groups, found.holdings(), strict=True)
        )
        return RunData(
            retain=retain if summed is None else Selected(_NONE, model.form).examples(),
            held_out=kept[0].examples() if holds else streamed,
            plan=selection.plan,
            batch_of=_batches(selection, selection.retain),
            summed=summed,
        )


def _samples(lease: Lease, plan: Plan) -> bool:
    """Return whether a run takes Poisson samples; their proof needs each to be of all records."""
    trains = lease.kind is RunKind.TRAIN or mechanism_named(plan.mechanism).trains_anew
    return trains and plan.training is TrainingKind.PRIVATE


def selected(model: ModelSpec, selection: Selection, shards: list[Part]) -> RunData:
    """Return the selected records, or their sums where the plan asks for nothing else of them.

    Args:
        model: the definition.
        selection: the records.
        shards: all of the dataset; each is taken from the list before the next one is copied.

    Raises:
        RunFailedError: a record is in no shard, or in two.
    """
    quantiser = _quantiser(model, selection)
    summed = None if quantiser is None else sums_over(shards, selection.retain, quantiser)
    return _run_data(model, selection, shards, summed)


def _run_data(
    model: ModelSpec, selection: Selection, parts: list[Part], summed: Summed | None
) -> RunData:
    retain = Selected(_NONE if summed else selection.retain, model.form)
    held_out = Selected(selection.held_out, model.form)
    while parts:
        part = parts.pop()  # free each part before the next one is copied
        retain.take(part)
        held_out.take(part)
        del part
        give_back()
    return RunData(
        retain=retain.examples(),
        held_out=held_out.examples(),
        plan=selection.plan,
        batch_of=_batches(selection, retain.seqs()),
        summed=summed,
    )


def _batches(selection: Selection, seqs: NDArray[np.int64]) -> NDArray[np.int64]:
    batch_of = selection.batch_of
    return _NONE if batch_of is None else batch_of[np.searchsorted(selection.retain, seqs)]


def _quantiser(model: ModelSpec, selection: Selection) -> Quantiser | None:
    """Return what makes sums of records; None where the plan has no use for them."""
    mechanism = mechanism_of(selection.plan)
    if not isinstance(mechanism, SufficientStatistics):
        return None
    targets = Targets(model.description.task, mechanism.target_range)
    return Quantiser(model.schema, mechanism.feature_range, targets)


def footprint_of(
    services: Services, model: ModelSpec, plan: Plan, dimension: int, devices: int = 1
) -> Footprint:
    """Return what decides how much memory a run needs; ``dimension`` counts the trained weights."""
    with services.database.transaction() as session:
        stock = stock_of(session, model.dataset_id)
        remembered, _, _ = datasets.counts(session, model.dataset_id)
    batch_size = {
        TrainingKind.DESCENT: plan.settings.get("batch_size"),
        TrainingKind.EXACT: 1,  # a head is computed of all records, or of their sums
    }.get(plan.training)
    return Footprint(
        plan=plan,
        schema=model.schema,
        record_bytes=model.form.record_bytes,
        dimension=dimension,
        batch_size=int(batch_size or model.recipe.batch_size),
        stock=stock,
        remembered=remembered,
        devices=devices,
    )


def _arranged(footprint: Footprint, allowed: int, *, measured: int) -> tuple[int, bool]:
    """Return how many records a window has, and whether those to measure on stay in memory.

    Raises:
        RunFailedError: the run needs more memory than it may use.
    """
    held = measured * footprint.record_bytes
    holds = held <= allowed // _SHARE_HELD
    needs = footprint.streamed(held=held if holds else 0, evaluated=measured)
    windows = 0 if footprint.sums and holds else footprint.windows(allowed)
    needs = Needs({**needs.parts, "two windows of records": windows})
    if needs.total > allowed:
        needs.refuse(allowed, why="the run, which streams its records,", advice=_ADVICE)
    return footprint.window(allowed), holds

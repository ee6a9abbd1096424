"""The arrays of a lineage: PostgreSQL decides each record as ``Membership`` does."""

import os
from collections import Counter
from dataclasses import replace
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, event, func, select
from sqlalchemy.orm import Session

from app.registry.counts import counted
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import RecordRow, ShardRow
from app.registry.membership import Membership, batch_digest
from app.registry.tables import LineageRecordsRow
from app.registry.training_set import NEVER, Facts, Partition, TrainingSet
from tests.support.workshop import RECORDS, Workshop, batches_of

FRACTIONS = (0.0, 0.1, 0.9)
MEMBERS = (None, 1, 2, 7, 256)


def _rows(session: Session) -> list[RecordRow]:
    return list(session.scalars(select(RecordRow).order_by(RecordRow.seq)))


def _add_without_subject(session: Session, workshop: Workshop, count: int) -> None:
    """Add records that belong to no person."""
    shard = session.scalars(select(ShardRow.id)).first()
    assert shard is not None
    datasets.add_records(
        session,
        dataset_id=workshop.model().dataset_id,
        shard_ids=[shard] * count,
        seqs=datasets.new_seqs(session, count),
        record_keys=np.frombuffer(os.urandom(32 * count), np.uint8).reshape(count, 32),
        subject_keys=np.zeros((count, 32), np.uint8),
        without_subject=np.ones(count, bool),
    )


@pytest.fixture
def forgotten(workshop: Workshop) -> Workshop:
    """Records of which six were forgotten, in three requests."""
    workshop.push(300, first=RECORDS)
    workshop.train()
    for first in (0, 4, 8):
        workshop.forget(f"record-{first}", f"record-{first + 1}")
    return workshop


def test_each_record_is_where_its_keys_say(forgotten: Workshop) -> None:
    model = forgotten.model()
    with forgotten.transaction() as session:
        _add_without_subject(session, forgotten, 10)
        rows = _rows(session)
        lineages = product(FRACTIONS, MEMBERS, ((0, False), (1, False), (2, True)))
        for fraction, members, (after_epoch, is_imported) in lineages:
            split = Membership(
                through=rows[-3].seq,
                after_epoch=after_epoch,
                split_salt=b"s" * 32,
                held_out_fraction=fraction,
                is_imported=is_imported,
                members=members,
            )
            found = TrainingSet(session, model, split)
            included = [row for row in rows if split.includes(row)]
            for facts, side in ((found.records, False), (found.held_out, True)):
                there = [row for row in included if split.is_held_out(row) == side]
                assert facts.seqs.tolist() == [row.seq for row in there]
                lasting = [row.seq for row in there if row.forgotten_epoch is None]
                assert facts.retained.tolist() == lasting
                owners = [split.member_of(row) for row in there]
                assert facts.members.tolist() == owners
        session.rollback()


def test_what_was_forgotten_later_is_there_yet(forgotten: Workshop) -> None:
    model = forgotten.model()
    with forgotten.transaction() as session:
        rows = {row.seq: row for row in _rows(session)}
        for epoch in range(4):
            found = TrainingSet(session, model, as_of=epoch)
            gone = [each.seq for each in found.forgotten_after(0)]
            known = [seq for seq in found.records.seqs.tolist() if rows[seq].forgotten_epoch]
            assert gone == [seq for seq in known if (rows[seq].forgotten_epoch or 0) <= epoch]
            assert found.read(0) == len(found.records.seqs)
            assert found.retained == len(found.records.seqs) - len(gone)


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_batches_are_cut_from_the_order_of_the_keys_digests(
    forgotten: Workshop, batch_size: int
) -> None:
    model = forgotten.model()
    with forgotten.transaction() as session:
        rows = {row.seq: row for row in _rows(session)}
        for begun in (0, 2):
            found = TrainingSet(session, model)
            read = [
                row
                for row in map(rows.__getitem__, found.records.seqs.tolist())
                if row.forgotten_epoch is None or row.forgotten_epoch > begun
            ]
            digest_of = {row.seq: batch_digest(found.membership, row.record_key) for row in read}
            ranked = sorted(digest_of, key=digest_of.__getitem__)
            expected = {seq: rank // batch_size for rank, seq in enumerate(ranked)}
            assert batches_of(found, batch_size, begun_at_epoch=begun) == expected
            starts = tuple(digest_of[seq] for seq in ranked[::batch_size])
            assert found.starts(batch_size, begun_at_epoch=begun) == starts
            gone = found.forgotten_after(begun)
            assert found.by_batch(gone, batch_size, begun_at_epoch=begun) == Counter(
                expected[each.seq] for each in gone
            )


@pytest.mark.parametrize("mechanism", ["exact_training", "tracked_release"])
def test_keys_are_hashed_once_for_a_lineage(workshop: Workshop, mechanism: str) -> None:
    recipe = {"batch_size": 4, "held_out_fraction": 0.25}
    workshop.train(architecture="linear_head", mechanism=mechanism, recipe=recipe, epsilon=8.0)
    first, second = workshop.split()[0][:2]
    hashed = list[str]()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "string_agg" in statement and "sha256" in statement:
            hashed.append(statement)

    def everything() -> list[list[int]]:
        with workshop.transaction() as session:
            found = TrainingSet(session, workshop.model())
            batches = found.batches(3, begun_at_epoch=0)
            sides = ((each.seqs, each.ended) for each in (found.records, found.held_out))
            arrays: list[Any] = [*chain(*sides), found.records.members, *batches]
            return [each.tolist() for each in arrays]

    engine = workshop.services.database.engine
    event.listen(engine, "before_cursor_execute", note)
    workshop.forget(first)
    workshop.dispatch()
    if workshop.active_run() is not None:
        workshop.work()
    workshop.forget(second)
    known = everything()
    event.remove(engine, "before_cursor_execute", note)
    assert known[1].count(NEVER) == len(known[0]) - 2
    assert len(hashed) == (1 if mechanism == "exact_training" else 0)  # it has no fixed batches
    with workshop.transaction() as session:
        session.execute(delete(LineageRecordsRow))
    assert everything() == known


def test_members_divide_the_records_that_are_left(forgotten: Workshop) -> None:
    model = forgotten.model()
    split = Membership(10**9, 0, b"s" * 32, 0.25, is_imported=False, members=7)
    with forgotten.transaction() as session:
        found = TrainingSet(session, model, split)
        parts = found.by_member(range(7))
        assert np.array_equal(np.sort(np.concatenate([*parts.values()])), found.records.retained)
        for member, seqs in parts.items():
            assert (np.diff(seqs) > 0).all()
            places = np.searchsorted(found.records.seqs, seqs)
            assert set(found.records.members[places].tolist()) <= {member}
        assert found.by_member([5, 2]).keys() == {2, 5}


@pytest.mark.parametrize("members", [None, 4])
def test_destroyed_keys_leave_every_record_where_it_was(
    forgotten: Workshop, members: int | None
) -> None:
    with forgotten.transaction() as session:
        model = forgotten.model()
        split = replace(forgotten.membership(), members=members)
        found = TrainingSet(session, model, split)
        found.keep_all()
        before = _told(session, forgotten, split)
        gone = [row for row in _rows(session) if row.forgotten_epoch is not None]
        for row in gone[1:]:
            row.shard_id, row.erased_at = None, func.now()
        session.flush()
        for row in gone[1:]:
            row.sides = dict([split.side_of(row)])
            row.record_key = row.subject_key = None
        session.flush()
        assert _told(session, forgotten, split) == before
        assert not TrainingSet(session, model, split).contradicts_kept()
        first = Partition(split, found.starts(7, begun_at_epoch=0))
        batch_of = batches_of(found, 7, begun_at_epoch=0)
        left = [row for row in _rows(session) if row.record_key and row.seq in batch_of]
        assert all(first.batch_of(row.record_key) == batch_of[row.seq] for row in left)
        session.rollback()


def _told(session: Session, workshop: Workshop, split: Membership) -> list[object]:
    model = workshop.model()
    found = TrainingSet(session, model, split)

    def shown(facts: Facts) -> object:
        return facts.seqs.tolist(), facts.members.tolist(), facts.ended.tolist()

    return [
        counted(session, model.dataset_id, split),
        shown(found.records),
        shown(found.held_out),
        [batches_of(found, 7, begun_at_epoch=begun) for begun in (0, 2)],
        [split.side_of(row) for row in _rows(session)],
    ]

"""The log's tree in Postgres: proofs, growth, concurrency and rollbacks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.exc import IntegrityError

from app.domain.errors import CorruptLogError, InvalidInputError
from app.domain.merkle import EMPTY_ROOT, leaf_hash, verify_consistency, verify_inclusion
from app.evidence import log
from app.evidence.log import trees as log_trees
from app.evidence.log.tables import LogEntryRow, TreeNodeRow
from app.services import Services
from tests.support import trees
from tests.support.logbook import bodies, faults, forging, write
from tests.support.workshop import Workshop

_STRAY_CERTIFICATE = text(
    "INSERT INTO certificates (id, model_id, version_id, basis, envelope, sha256, number)"
    " VALUES (:id, :model, 'nothing', '', '', '', :number)"
)


def test_proofs_are_those_of_the_definition_whatever_the_steps_of_growth(
    services: Services,
) -> None:
    write(services, 1, 1, 1, 4, 1, 9, 2, 16, 1, 1, 33)
    leaves = bodies(services)
    assert len(leaves) == 70
    with services.database.transaction() as session:
        for size in range(71):
            assert log_trees.root(session, size) == trees.root(leaves[:size])
        for size in (1, 2, 3, 31, 32, 33, 69, 70):
            for index in range(size):
                proof = log_trees.inclusion_proof(session, index=index, size=size)
                assert proof == trees.path(index, leaves[:size])
            for old in range(1, size + 1):
                proof = log_trees.consistency_proof(session, old_size=old, new_size=size)
                assert proof == trees.proof(old, leaves[:size])
        assert log_trees.consistency_proof(session, old_size=0, new_size=70) == []
        assert log_trees.root(session, 0) == EMPTY_ROOT


def test_only_complete_subtrees_are_stored(services: Services) -> None:
    write(services, 3, 8)
    with services.database.transaction() as session:
        rows = session.execute(select(TreeNodeRow.level, TreeNodeRow.position)).all()
    assert sorted(map(tuple, rows)) == sorted(
        (level, position) for level in (1, 2, 3) for position in range(11 >> level)
    )


def test_sizes_and_indices_beyond_the_log_are_refused(services: Services) -> None:
    write(services, 5)
    with services.database.transaction() as session:
        for index, size in ((5, 5), (0, 6), (-1, 5), (0, 0), (0, -1)):
            with pytest.raises(InvalidInputError):
                log_trees.inclusion_proof(session, index=index, size=size)
        for old, new in ((4, 3), (1, 6), (-1, 3), (0, -1)):
            with pytest.raises(InvalidInputError):
                log_trees.consistency_proof(session, old_size=old, new_size=new)
        with pytest.raises(InvalidInputError):
            log_trees.root(session, 6)


def test_a_missing_node_is_an_error_and_stops_the_log(
    services: Services, app_database: Engine
) -> None:
    write(services, 6)
    with forging(app_database) as connection:
        connection.execute(text("DELETE FROM tree_nodes WHERE level = 2"))
    with services.database.transaction() as session, pytest.raises(CorruptLogError):
        log_trees.inclusion_proof(session, index=5, size=6)
    with pytest.raises(CorruptLogError):
        write(services, 1)
    assert len(bodies(services)) == 6


def test_many_writers_of_whom_some_fail_at_commit_grow_one_tree(workshop: Workshop) -> None:
    services, writers, rounds = workshop.services, 8, 12
    workshop.define()
    model_id = workshop.model().id
    before = len(bodies(services))
    barrier = threading.Barrier(writers)

    def write_one(writer: int, count: int) -> None:
        with services.database.transaction() as session:
            for entry in range(count % 4 + 1):
                log.append(session, "test.entry", writer=writer, entry=entry)
            log.checkpoint_at_commit(session, services.signer)
            if count % 3 == 2:
                # Its version does not exist, which is only noticed by COMMIT itself.
                number = 1 + writer * rounds + count
                stray = {"id": f"stray-{number}", "model": model_id, "number": number}
                session.execute(_STRAY_CERTIFICATE, stray)

    def run(writer: int) -> None:
        barrier.wait()
        for count in range(rounds):
            if count % 3 == 2:
                with pytest.raises(IntegrityError):
                    write_one(writer, count)
            else:
                write_one(writer, count)

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(run, range(writers)))

    leaves = bodies(services)
    committed = sum(count % 4 + 1 for count in range(rounds) if count % 3 != 2)
    assert len(leaves) == before + writers * committed
    with services.database.transaction() as session:
        assert session.scalar(select(func.max(LogEntryRow.index))) == len(leaves) - 1
        assert log_trees.root(session, len(leaves)) == trees.root(leaves)
    assert faults(services) == []


def test_a_rollback_leaves_neither_entry_nor_node_nor_checkpoint(services: Services) -> None:
    write(services, 3, sign=True)

    def fails_at_commit() -> None:
        with services.database.transaction() as session:
            log.append(session, "test.undone")
            log.append(session, "test.undone", value=float("nan"))
            log.checkpoint_at_commit(session, services.signer)

    with pytest.raises(ValueError, match="JSON"):
        fails_at_commit()
    write(services, 2, sign=True)
    assert len(bodies(services)) == 5
    assert faults(services) == []


def test_stored_proofs_convince_a_verifier(services: Services) -> None:
    write(services, 13)
    leaves = bodies(services)
    with services.database.transaction() as session:
        root = log_trees.root(session, 13)
        verify_inclusion(
            leaf=leaf_hash(leaves[6]),
            index=6,
            size=13,
            proof=log_trees.inclusion_proof(session, index=6, size=13),
            root=root,
        )
        verify_consistency(
            old_size=6,
            old_root=log_trees.root(session, 6),
            new_size=13,
            new_root=root,
            proof=log_trees.consistency_proof(session, old_size=6, new_size=13),
        )

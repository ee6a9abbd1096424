"""Signed checkpoints: with every certificate, and from time to time."""

import pytest
from sqlalchemy import Engine, func, select, text

from app.domain.errors import CorruptLogError, NoteError, NotReadyError
from app.evidence import log
from app.evidence.certificates.note import open_checkpoint
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import checkpoints
from app.evidence.log import trees as log_trees
from app.evidence.log.tables import LogCheckpointRow, LogEntryRow
from app.services import Services
from tests.support import trees
from tests.support.logbook import bodies, forging, opened, sign, write
from tests.support.workshop import Workshop


def _sizes(services: Services) -> list[int]:
    with services.database.transaction() as session:
        query = select(LogCheckpointRow.size).order_by(LogCheckpointRow.size)
        return list(session.scalars(query))


def test_a_checkpoint_states_size_and_root_under_the_logs_own_name(services: Services) -> None:
    write(services, 5)
    note = sign(services)
    checkpoint = opened(services, note)
    leaves = bodies(services)
    assert (checkpoint.size, checkpoint.root) == (6, trees.root(leaves))
    assert b'"kind":"log.signed"' in leaves[-1]
    assert checkpoint.origin == f"expunge/{trees.leaf(leaves[0]).hex()[:32]}"
    write(services, 1)
    assert opened(services, sign(services)).origin == checkpoint.origin


def test_a_log_that_has_not_grown_keeps_its_checkpoint(services: Services) -> None:
    write(services, 2, sign=True)
    assert sign(services) == sign(services)
    assert _sizes(services) == [2]


def test_another_key_did_not_sign_it(services: Services, tmp_path) -> None:
    write(services, 1)
    note = sign(services)
    other = StatementSigner.from_file(tmp_path / "other.pem", create=True)
    with pytest.raises(NoteError):
        open_checkpoint(note, [other.note_key(opened(services, note).origin)])


def test_a_publication_is_signed_in_its_own_transaction(workshop: Workshop) -> None:
    workshop.define()
    before = _sizes(workshop.services)
    version = workshop.work()
    (size,) = set(_sizes(workshop.services)) - set(before)
    with workshop.transaction() as session:
        entries = session.scalars(
            select(LogEntryRow.index).where(
                LogEntryRow.body.contains(version.certificate_id)
                | LogEntryRow.body.contains(version.id)
            )
        ).all()
        assert len(entries) == 2
        assert max(entries) < size <= log_trees.size(session)


def test_the_timer_signs_a_log_that_has_grown_once(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first entry of its own is about the key that signs."""
    monkeypatch.setattr("app.services.CHECKPOINT_INTERVAL_S", 0)
    services.checkpoint_log()
    assert _sizes(services) == []
    write(services, 3)
    services.checkpoint_log()
    services.checkpoint_log()
    assert _sizes(services) == [4]
    write(services, 1)
    services.checkpoint_log()
    services.checkpoint_log()
    assert _sizes(services) == [4, 6]  # with an entry that says so


@pytest.mark.parametrize("year", [2020, 2999])
def test_the_timer_waits_for_a_while_after_what_it_signed(
    services: Services, app_database: Engine, year: int
) -> None:
    """Not for what was signed in the future: the clock was set back since."""
    write(services, 1, sign=True)
    write(services, 1)
    services.checkpoint_log()
    assert _sizes(services) == [1]
    with forging(app_database) as connection:
        connection.execute(
            text(
                "UPDATE log_entries SET body = regexp_replace("
                """body, '("recorded_at":")[^.]*', '\\1' || :moment)"""
            ),
            {"moment": f"{year}-01-01T00:00:00"},
        )
    services.checkpoint_log()
    assert _sizes(services) == [1, 3]  # the key that signs is told


def test_a_log_shorter_than_its_checkpoints_is_not_signed(
    services: Services, app_database: Engine
) -> None:
    write(services, 4, sign=True)
    with forging(app_database) as connection:
        connection.execute(text("DELETE FROM log_entries WHERE index = 3"))
    with pytest.raises(CorruptLogError), services.database.transaction() as session:
        log.checkpoint_at_commit(session, services.signer)


def test_without_a_checkpoint_there_is_none_to_show(services: Services) -> None:
    with services.database.transaction() as session:
        with pytest.raises(NotReadyError):
            checkpoints.latest(session)
        with pytest.raises(NotReadyError):
            checkpoints.origin(session)
    write(services, 2, sign=True)
    with services.database.transaction() as session:
        assert checkpoints.latest(session).size == 2
        assert session.scalar(select(func.count()).select_from(LogCheckpointRow)) == 1

"""What passes by the ORM belongs to the session's transaction, and fails like anything else."""

from collections.abc import Iterator

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from app.ledger import outbox
from app.ledger.tables import OutboxRow
from app.registry.datasets.repository import copy_parts
from app.runtime.database import Database
from app.services import Services

_COPY = "COPY outbox (id, topic, subject_id, available_at) FROM STDIN"


@pytest.fixture
def database(services: Services) -> Database:
    return services.database


def _row(number: int, subject: str = "model") -> bytes:
    return f"{number}\tschedule_model\t{subject}\t2100-01-01\n".encode()


def _count(session: Session) -> int | None:
    return session.scalar(select(func.count()).select_from(OutboxRow))


def test_rows_come_after_what_was_held_back_and_before_what_follows(database: Database) -> None:
    with database.transaction() as session:
        outbox.post(session, outbox.Topic.SCHEDULE_MODEL, "held back")

        def rows() -> Iterator[bytes]:
            assert not session.new
            yield _row(1001)
            yield _row(1002)

        copy_parts(session, _COPY, rows())
        assert _count(session) == 3


def test_they_belong_to_the_sessions_transaction(database: Database) -> None:
    with database.transaction() as session:
        copy_parts(session, _COPY, [_row(1001), _row(1002)])
        with database.transaction() as another:
            assert _count(another) == 0
    with database.transaction() as session:
        assert _count(session) == 2


def test_a_row_that_fails_undoes_all_and_tells_no_parameters(database: Database) -> None:
    with database.transaction() as session:
        copy_parts(session, _COPY, [_row(1001)])
    with pytest.raises(IntegrityError) as caught, database.transaction() as session:
        copy_parts(session, _COPY, [_row(1002), _row(1001, "secret")])
    assert "secret" not in str(caught.value)
    with database.transaction() as session:
        assert _count(session) == 1


def test_a_lost_connection_is_told_and_thrown_away(database: Database) -> None:
    thrown_away: list[object] = []
    event.listen(database.engine.pool, "invalidate", lambda *of: thrown_away.append(of))

    def send(session: Session) -> None:
        backend = session.scalar(text("SELECT pg_backend_pid()"))
        with database.transaction() as another:
            another.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": backend})
        copy_parts(session, _COPY, [_row(1001)])

    with pytest.raises(DBAPIError) as caught, database.transaction() as session:
        send(session)
    assert caught.value.connection_invalidated
    assert len(thrown_away) == 1
    with database.transaction() as session:
        assert _count(session) == 0

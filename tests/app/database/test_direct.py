"""What passes by the ORM belongs to the session's transaction, and fails like anything else."""

import pytest
from sqlalchemy import Integer, String, bindparam, event, func, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from app.database import Database
from app.database.direct import directly, prepared
from app.ledger import outbox
from app.ledger.tables import OutboxRow
from app.services import Services

_POST = prepared(
    text(
        "INSERT INTO outbox (topic, subject_id, available_at)"
        " SELECT 'schedule_model', 'model_' || i, now() FROM generate_series(1, :count) AS i"
    ).bindparams(bindparam("count", type_=Integer))
)
_SUBJECTS = prepared(select(OutboxRow.id, OutboxRow.subject_id).order_by(OutboxRow.id))
_AGAIN = prepared(
    text(
        "INSERT INTO outbox (id, topic, subject_id, available_at) OVERRIDING SYSTEM VALUE"
        " VALUES (:id, 'schedule_model', :subject, now())"
    ).bindparams(bindparam("id", type_=Integer), bindparam("subject", type_=String))
)
_END = prepared(text("SELECT pg_terminate_backend(pg_backend_pid())"))


@pytest.fixture
def database(services: Services) -> Database:
    return services.database


def _subject(_id: int, subject_id: str) -> str:
    return subject_id


def _count(session: Session) -> int | None:
    return session.scalar(select(func.count()).select_from(OutboxRow))


def test_each_statement_sees_what_was_done_before_it(database: Database) -> None:
    with database.transaction() as session:
        outbox.post(session, outbox.Topic.SCHEDULE_MODEL, "held back")
        with directly(session) as direct:
            before = direct.read(_SUBJECTS, {}, _subject)
            direct.run(_POST, {"count": 2})
            after = direct.read(_SUBJECTS, {}, _subject)
        assert before == ["held back"]
        assert after == ["held back", "model_1", "model_2"]
        assert _count(session) == 3


def test_it_belongs_to_the_sessions_transaction(database: Database) -> None:
    with database.transaction() as session:
        with directly(session) as direct:
            direct.run(_POST, {"count": 2})
        with database.transaction() as another:
            assert _count(another) == 0
    with database.transaction() as session:
        assert _count(session) == 2


def test_a_statement_that_fails_undoes_all_and_tells_no_parameters(database: Database) -> None:
    def send(session: Session, row_id: int) -> None:
        with directly(session) as direct:
            direct.run(_POST, {"count": 1})
            direct.run(_AGAIN, {"id": row_id, "subject": "secret"})
            direct.run(_POST, {"count": 1})

    with database.transaction() as session:
        outbox.post(session, outbox.Topic.SCHEDULE_MODEL, "first")
        session.flush()
        first = session.scalars(select(OutboxRow.id)).one()
    with pytest.raises(IntegrityError) as caught, database.transaction() as session:
        send(session, first)
    assert "secret" not in str(caught.value)
    with database.transaction() as session:
        assert _count(session) == 1


def test_a_lost_connection_is_told_and_thrown_away(database: Database) -> None:
    thrown_away: list[object] = []
    event.listen(database.engine.pool, "invalidate", lambda *of: thrown_away.append(of))

    def send(session: Session) -> None:
        with directly(session) as direct:
            direct.run(_END, {})
            direct.run(_POST, {"count": 1})

    with pytest.raises(DBAPIError) as caught, database.transaction() as session:
        send(session)
    assert caught.value.connection_invalidated
    assert len(thrown_away) == 1
    with database.transaction() as session:
        assert _count(session) == 0

"""Loops that are woken by what other connections commit; none would go on by itself in time."""

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from app.runtime.database import Database
from app.runtime.database import wakeups as wakeups_module
from app.runtime.database.wakeups import Signal, WakeUps, wake
from tests.support.patience import PATIENCE_S

_LONG_S = 10 * PATIENCE_S
_BOTH = {Signal.DUE, Signal.ERASABLE}


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.dispose()


@pytest.fixture
def woken(database: Database) -> Iterator[WakeUps]:
    wake_ups = WakeUps(database, *_BOTH)
    assert wake_ups.wait(_LONG_S) == _BOTH  # nobody has listened until now
    yield wake_ups
    wake_ups.close()


def _give(database: Database, *signals: Signal) -> None:
    with database.transaction() as session:
        for signal in signals:
            wake(session, signal)


def test_a_commit_wakes_who_waits_for_its_signals(database: Database, woken: WakeUps) -> None:
    heard = list[frozenset[Signal]]()
    thread = threading.Thread(target=lambda: heard.append(woken.wait(_LONG_S)))
    with database.transaction() as session:
        wake(session, Signal.ERASABLE)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(PATIENCE_S)
    assert heard == [{Signal.ERASABLE}]


def test_what_was_committed_before_the_wait_wakes_once(database: Database, woken: WakeUps) -> None:
    _give(database, Signal.DUE, Signal.DUE)
    _give(database, Signal.ERASABLE)
    assert woken.wait(_LONG_S) == _BOTH
    assert woken.wait(0.01) == set()


def test_neither_other_signals_nor_what_is_rolled_back_wake(
    database: Database, woken: WakeUps
) -> None:
    _give(database, Signal.NEWS)
    with database.transaction() as session:
        wake(session, Signal.DUE)
        session.rollback()
    assert woken.wait(0.5) == set()


def test_who_lost_the_connection_takes_every_signal_for_given(
    database: Database, woken: WakeUps
) -> None:
    with database.transaction() as session:
        session.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
            )
        )
    heard = woken.wait(0.5)
    assert heard in (set(), _BOTH)  # perhaps it was lost while waiting
    assert heard or woken.wait(_LONG_S) == _BOTH
    _give(database, Signal.DUE)
    assert woken.wait(_LONG_S) == {Signal.DUE}


@pytest.mark.parametrize(
    "error", [OperationalError("LISTEN", {}, Exception("gone")), OSError("unexpected")]
)
def test_who_cannot_listen_waits_and_holds_no_connection(
    database: Database, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    wake_ups = WakeUps(database, Signal.DUE)
    event.listen(database.engine, "before_cursor_execute", fail)
    assert wake_ups.wait(0.01) == set()
    assert database.engine.pool.checkedout() == 0
    event.remove(database.engine, "before_cursor_execute", fail)
    assert wake_ups.wait(_LONG_S) == {Signal.DUE}
    wake_ups.close()


def test_no_other_caller_gets_a_connection_that_listens(database: Database, woken: WakeUps) -> None:
    woken.close()
    with database.at_once() as connection:
        assert connection.scalars(text("SELECT pg_listening_channels()")).all() == []
    assert woken.wait(_LONG_S) == _BOTH


def test_behind_a_pooler_the_pause_is_all_there_is(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups_module, "is_pooled", lambda _: True)
    deaf = WakeUps(database, Signal.DUE)
    for _ in range(2):
        _give(database, Signal.DUE)
        assert deaf.wait(0.01) == set()
    with database.transaction() as session:
        listening = text(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            " AND datname = current_database()"
        )
        assert session.scalar(listening) == 0

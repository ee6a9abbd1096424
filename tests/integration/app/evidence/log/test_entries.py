"""The log: every decision once, in one order, without gaps and without owners' ids."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.evidence import log
from app.evidence.log.tables import LogEntryRow
from app.services import Services
from tests.support.workshop import Workshop


def _entries(services: Services) -> list[LogEntryRow]:
    with services.database.transaction() as session:
        return list(session.scalars(select(LogEntryRow).order_by(LogEntryRow.index)))


def test_concurrent_transactions_leave_no_gap(services: Services) -> None:
    barrier = threading.Barrier(8)

    def write(writer: int) -> None:
        barrier.wait()
        for entry in range(10):
            with services.database.transaction() as session:
                log.append(session, "test.one", writer=writer, entry=entry)
                log.append(session, "test.two", writer=writer, entry=entry)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))

    entries = _entries(services)
    assert [entry.index for entry in entries] == list(range(160))
    for first, second in zip(entries[::2], entries[1::2], strict=True):
        one, two = json.loads(first.body), json.loads(second.body)
        assert (one["writer"], one["entry"]) == (two["writer"], two["entry"])


def test_a_transaction_that_is_rolled_back_leaves_no_entry_and_no_gap(services: Services) -> None:
    def fails() -> None:
        with services.database.transaction() as session:
            log.append(session, "test.undone")
            session.execute(insert(LogEntryRow).values(index=0))

    with pytest.raises(DBAPIError):
        fails()
    with Session(services.database.engine) as session:
        log.append(session, "test.undone")
        session.execute(select(1))
        session.rollback()
        log.append(session, "test.done")
        session.commit()

    assert [(entry.index, entry.kind) for entry in _entries(services)] == [(0, "test.done")]


def test_entries_are_canonical_json_of_the_decision(services: Services) -> None:
    with services.database.transaction() as session:
        log.append(session, "test.kind", b=1, a="ü")

    (entry,) = _entries(services)
    start, moment = entry.body.removesuffix('"}').split(',"recorded_at":"')
    assert start == '{"a":"\\u00fc","b":1,"by":"service","kind":"test.kind"'
    age = datetime.now(UTC) - datetime.fromisoformat(moment)
    assert moment.endswith("+00:00")
    assert abs(age) < timedelta(minutes=1)


def test_every_change_of_state_is_logged(workshop: Workshop) -> None:
    workshop.define()
    workshop.work()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.lease()
    workshop.begin(held)
    workshop.give_up(held, permanent=False)
    held = workshop.lease()
    workshop.begin(held)
    workshop.publish(held)
    workshop.services.clean_up()

    entries = [(entry.kind, json.loads(entry.body)) for entry in _entries(workshop.services)]
    assert [kind for kind, body in entries if body.get("request") == request_id] == [
        "request.accepted",
        "obligation.open",
        "obligation.running",
        "request.unlearning",
        "obligation.certified",
        "request.certified",
        "records.erased",
        "request.completed",
    ]
    assert [kind for kind, body in entries if body.get("run") == held.run_id] == [
        "run.queued",
        "run.leased",
        "obligation.running",
        "run.running",
        "run.planned",
        "run.requeued",
        "run.leased",
        "run.running",
        "run.planned",
        "version.published",
        "obligation.certified",
    ]
    assert [kind for kind, _ in entries].count("version.retired") == 1
    assert [kind for kind, _ in entries].count("version.shredded") == 1
    assert [kind for kind, _ in entries].count("certificate.issued") == 2

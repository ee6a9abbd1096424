"""The log: every decision once, in one order, without gaps and without owners' ids."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.access import api_keys
from app.access.tables import ApiKeyRow
from app.evidence import log
from app.evidence.log.tables import LogEntryRow
from app.services import Services
from tests.support.logbook import bodies, faults
from tests.support.patience import until
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
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held, permanent=False)
    held = workshop.begun()
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


def _all_entries(services: Services) -> list[dict]:
    return [json.loads(body) for body in bodies(services)]


def _key(services: Services, *, name: str = "caller") -> str:
    with services.database.transaction() as session:
        return api_keys.create_key(session, name=name, scopes=[])[0].id


def test_a_digest_stands_in_the_entry_about_its_row(services: Services) -> None:
    with services.database.transaction() as session:
        ids = [api_keys.create_key(session, name=str(i), scopes=[])[0].id for i in range(2)]
        log.append(session, "key.mentioned", of="another", key=ids[0])
    created = _all_entries(services)[-3:-1]
    assert [list(entry["rows"]) for entry in created] == [[f"api_keys/{i}"] for i in ids]
    assert "rows" not in _all_entries(services)[-1]


def test_a_row_that_no_entry_names_gets_one(services: Services) -> None:
    key_id = _key(services)
    with services.database.transaction() as session:
        session.get_one(ApiKeyRow, key_id).name = "other"
    assert faults(services) == []
    newest = _all_entries(services)[-1]
    assert (newest["kind"], list(newest["rows"])) == ("rows.changed", [f"api_keys/{key_id}"])


def test_only_digested_columns_need_an_entry(services: Services) -> None:
    key_id = _key(services)
    before = len(bodies(services))
    with services.database.transaction() as session:
        row = session.get_one(ApiKeyRow, key_id)
        row.last_used_at, row.name = row.created_at, row.name
    assert len(bodies(services)) == before


def test_a_statement_says_which_rows_it_changes(services: Services) -> None:
    ids = [_key(services) for _ in range(3)]
    for told in (True, False):
        with services.database.transaction() as session:
            renamed = update(ApiKeyRow).values(name=f"told: {told}").returning(ApiKeyRow.id)
            changed = session.scalars(renamed).all()
            if told:
                log.changed(session, ApiKeyRow, changed)
        assert {fault.where for fault in faults(services)} == (
            set() if told else {f"api_keys {i}" for i in ids}
        )


def test_what_is_undone_leaves_no_digest(services: Services) -> None:
    key_id = _key(services)
    before = len(bodies(services))
    with Session(services.database.engine) as session:
        session.get_one(ApiKeyRow, key_id).name = "other"
        session.flush()
        session.rollback()
        session.commit()
    assert len(bodies(services)) == before
    assert faults(services) == []


def test_a_part_cannot_be_undone_alone(services: Services) -> None:
    with services.database.transaction() as session, pytest.raises(TypeError, match="savepoints"):
        session.begin_nested()


def test_of_two_that_change_one_row_the_later_has_the_later_digest(services: Services) -> None:
    key_id = _key(services)  # whose revocation has PostgreSQL compute the only column it changes

    def revoke() -> None:
        with services.database.transaction() as session:
            api_keys.revoke(session, key_id)

    with ThreadPoolExecutor(1) as pool:
        with services.database.transaction() as session:
            session.get_one(ApiKeyRow, key_id).name = "other"
            session.flush()
            waiting = pool.submit(revoke)
            blocked = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            until(lambda: session.scalar(blocked))
            log.append(session, "key.renamed", key=key_id)
        waiting.result()
    told = [
        entry for entry in _all_entries(services) if f"api_keys/{key_id}" in entry.get("rows", {})
    ]
    assert [entry["kind"] for entry in told] == ["key.created", "key.renamed", "key.revoked"]
    assert faults(services) == []

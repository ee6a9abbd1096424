"""Entries hold the digests of the rows that their transactions leave behind."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text, update
from sqlalchemy.orm import Session

from app.access import api_keys
from app.access.tables import ApiKeyRow
from app.evidence import log
from app.services import Services
from tests.support.logbook import bodies, faults
from tests.support.patience import until


def _entries(services: Services) -> list[dict]:
    return [json.loads(body) for body in bodies(services)]


def _key(services: Services, *, name: str = "caller") -> str:
    with services.database.transaction() as session:
        return api_keys.create_key(session, name=name, scopes=[])[0].id


def test_a_digest_stands_in_the_entry_about_its_row(services: Services) -> None:
    with services.database.transaction() as session:
        ids = [api_keys.create_key(session, name=str(i), scopes=[])[0].id for i in range(2)]
        log.append(session, "key.mentioned", of="another", key=ids[0])
    created = _entries(services)[-3:-1]
    assert [list(entry["rows"]) for entry in created] == [[f"api_keys/{i}"] for i in ids]
    assert "rows" not in _entries(services)[-1]


def test_a_row_that_no_entry_names_gets_one(services: Services) -> None:
    key_id = _key(services)
    with services.database.transaction() as session:
        session.get_one(ApiKeyRow, key_id).name = "other"
    assert faults(services) == []
    newest = _entries(services)[-1]
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
    told = [entry for entry in _entries(services) if f"api_keys/{key_id}" in entry.get("rows", {})]
    assert [entry["kind"] for entry in told] == ["key.created", "key.renamed", "key.revoked"]
    assert faults(services) == []

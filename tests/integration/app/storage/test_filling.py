"""Blobs that are written on a thread while their transaction does other work."""

import time
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.domain.errors import ObjectStoreError
from app.runtime.database import Database
from app.services import Services
from app.storage.blobs import adopt
from app.storage.stores import key_store
from app.storage.tables import BlobRow
from tests.support.patience import PATIENCE_S, until


def _state(services: Services, blob_id: str) -> str:
    with services.database.transaction() as session:
        return session.get_one(BlobRow, blob_id).state


def _assert_nothing_is_left(services: Services, blob_id: str) -> None:
    services.blobs.sweep()
    assert not key_store(services.settings).holds(blob_id)
    assert not Path(services.settings.data_dir / "blobs" / blob_id).exists()
    assert _state(services, blob_id) == "shredded"


def test_it_is_written_while_the_block_works(services: Services) -> None:
    working = Event()

    def content() -> bytes:
        assert working.wait(PATIENCE_S)
        return b"content"

    with services.database.transaction() as session:
        blob_id = services.blobs.reserve(session, "shard")
        with services.blobs.filling(session, blob_id, content):
            session.execute(text("SELECT 1"))
            working.set()
        adopt(session, blob_id)
    assert services.blobs.read(blob_id) == b"content"


def test_a_block_that_fails_leaves_nothing(services: Services) -> None:
    blob_ids: list[str] = []

    def write() -> None:
        with services.database.transaction() as session:
            blob_ids.append(services.blobs.reserve(session, "shard"))
            with services.blobs.filling(session, blob_ids[0], lambda: b"content"):
                session.execute(text("SELECT 1 / 0"))

    with pytest.raises(DBAPIError):
        write()
    _assert_nothing_is_left(services, blob_ids[0])


def test_content_that_cannot_be_made_or_written_leaves_nothing(services: Services) -> None:
    blob_ids: list[str] = []

    def cannot() -> bytes:
        raise ObjectStoreError("the object store does not answer")

    def write() -> None:
        with services.database.transaction() as session:
            blob_ids.append(services.blobs.reserve(session, "shard"))
            with services.blobs.filling(session, blob_ids[0], cannot):
                session.execute(text("SELECT 1"))

    with pytest.raises(ObjectStoreError):
        write()
    _assert_nothing_is_left(services, blob_ids[0])


@pytest.mark.slow  # it waits
def test_a_slow_write_outlasts_the_limit_of_idle_transactions(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.storage.blobs._AWAKE_S", 0.1)
    impatient = Database(str(services.settings.database_url), idle_in_transaction_s=4.0)

    def content() -> bytes:
        time.sleep(6)
        return b"content"

    with impatient.transaction() as session:
        blob_id = services.blobs.reserve(session, "shard")
        with services.blobs.filling(session, blob_id, content):
            pass
        adopt(session, blob_id)
    impatient.dispose()
    assert services.blobs.read(blob_id) == b"content"


def test_a_transaction_that_was_ended_meanwhile_leaves_nothing(services: Services) -> None:
    """As when all of a process is frozen: a sweep gives the blob up before it is written."""
    impatient = Database(str(services.settings.database_url), idle_in_transaction_s=1.0)
    swept = Event()
    blob_ids: list[str] = []

    def content() -> bytes:
        assert swept.wait(PATIENCE_S)
        return b"content"

    def write() -> None:
        with impatient.transaction() as session:
            blob_ids.append(services.blobs.reserve(session, "shard"))
            with services.blobs.filling(session, blob_ids[0], content):
                until(lambda: services.blobs.sweep() == 1)
                swept.set()

    with pytest.raises(DBAPIError):
        write()
    impatient.dispose()
    _assert_nothing_is_left(services, blob_ids[0])

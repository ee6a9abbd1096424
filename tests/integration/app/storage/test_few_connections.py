"""Writers of stored objects wait for no second connection while they hold one."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import select

from app.domain.errors import ObjectStoreError
from app.registry import backbones
from app.runtime.database import Database
from app.runtime.settings import Settings
from app.services import Services, open_services
from app.storage.tables import BlobRow
from tests.support.weights import public_backbone
from tests.support.workshop import DATASET, Workshop, records_parquet

PUSHES = 8


@pytest.fixture
def connections() -> int:
    """How many the service has."""
    return 1


@pytest.fixture
def services(
    settings: Settings, connections: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Services]:
    few = partial(Database, most_connections=connections)
    monkeypatch.setattr("app.services.Database", few)
    services = open_services(settings)
    yield services
    services.database.dispose()


@pytest.mark.parametrize("connections", [1, PUSHES])
def test_as_many_pushes_as_there_are_connections_go_through(workshop: Workshop) -> None:
    def push(number: int) -> int:
        content = records_parquet(4, first=100 * number)
        return workshop.services.records.push(DATASET, content).added

    with ThreadPoolExecutor(PUSHES) as threads:
        assert list(threads.map(push, range(1, PUSHES + 1))) == [4] * PUSHES


def _import(workshop: Workshop) -> None:
    workshop.define(upload=True)
    workshop.upload("model")


def _bring_backbone(workshop: Workshop) -> None:
    with workshop.transaction() as session:
        backbones.define_backbone(session, public_backbone("public"))
    with workshop.transaction() as session:
        backbones.upload_weights(session, workshop.services.blobs, "public", b"weights")


def _erase(workshop: Workshop) -> None:
    request = workshop.forget("record-3")
    workshop.services.clean_up()
    assert workshop.request(request).state == "completed"


@pytest.mark.parametrize("write", [_import, _bring_backbone, _erase])
def test_one_connection_is_enough_to_write(
    workshop: Workshop, write: Callable[[Workshop], None]
) -> None:
    write(workshop)
    with workshop.transaction() as session:
        assert len(session.scalars(select(BlobRow.id)).all()) > 1


def test_one_connection_is_enough_to_take_back_what_cannot_be_written(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ObjectStoreError("full")

    monkeypatch.setattr(workshop.services.blobs._objects, "write", fail)
    with pytest.raises(ObjectStoreError):
        workshop.services.records.push(DATASET, records_parquet(4, first=100))

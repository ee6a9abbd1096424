"""What the service does, and what it concludes, while what wraps its keys is away."""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.domain.errors import KeyServiceError
from app.operations import reconciliation
from app.runtime.settings import Settings
from app.services import Services, create_keys, open_services
from app.storage import file_keys
from app.storage.blobs import doom
from tests.support.key_keepers import Kms, Vault, running
from tests.support.stored import live
from tests.support.workshop import Workshop


@pytest.fixture(params=[pytest.param(Kms, marks=pytest.mark.slow), Vault])
def keeper(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kms | Vault]:
    """A service of this test's own, which it may stop; nothing is remembered."""
    monkeypatch.setattr(file_keys, "KEEP_S", 0.0)
    with running(request.param) as service:
        yield service


def test_nothing_is_taken_for_lost(
    workshop: Workshop, services: Services, keeper: Kms | Vault, settings: Settings
) -> None:
    """Else ``expunge reconcile --apply`` would retire every version."""
    workshop.train()
    keeper.stop()
    other = open_services(settings)
    with pytest.raises(KeyServiceError), other.database.transaction() as session:
        reconciliation.reconcile(session, other.blobs, other.signer)
    keeper.start()
    with other.database.transaction() as session:
        assert reconciliation.reconcile(session, other.blobs, other.signer).is_empty
    other.database.dispose()
    assert workshop.model().head_version_id is not None


def test_an_object_that_is_not_read_now_is_not_called_unreadable(
    services: Services, keeper: Kms | Vault, settings: Settings
) -> None:
    """As when the service goes away in the middle of a reconciliation."""
    blob = live(services.blobs, "weights", b"content")
    keeper.stop()
    other = open_services(settings)
    with pytest.raises(KeyServiceError):
        other.blobs.is_readable(blob.id)
    with pytest.raises(KeyServiceError):
        other.blobs.read_orphan(blob.id, "weights")
    other.database.dispose()
    keeper.start()


def test_what_was_given_up_is_shredded_all_the_same(
    services: Services, keeper: Kms | Vault
) -> None:
    blob = live(services.blobs, "weights", b"content")
    keeper.stop()
    with services.database.transaction() as session:
        doom(session, blob.id)
    assert services.blobs.sweep() == 1
    keeper.start()


def test_callers_are_asked_to_come_again_and_readiness_tells_why(
    api: TestClient, workshop: Workshop, keeper: Kms | Vault
) -> None:
    version = workshop.train()
    path = f"/v1/models/model/versions/{version.number}/weights"
    assert api.get(path).status_code == HTTPStatus.OK
    keeper.stop()
    answer = api.get(path)
    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert answer.headers["Retry-After"] == "30"
    assert answer.json()["type"].endswith("storage-unavailable")
    ready = api.get("/readyz")
    assert ready.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert ready.json()["key_store"] == "unusable"
    keeper.start()
    assert api.get(path).status_code == HTTPStatus.OK


def test_a_store_is_not_set_up_halfway(
    keeper: Kms | Vault, settings: Settings, tmp_path: Path
) -> None:
    apart = settings.model_copy(update={"key_store_dir": tmp_path / "apart"})
    keeper.stop()
    with pytest.raises(KeyServiceError):
        create_keys(apart)
    keeper.start()
    create_keys(apart)
    assert [path.name for path in (tmp_path / "apart" / "periods").iterdir()] == ["1"]

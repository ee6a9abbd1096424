"""``/v1/models/{name}/targets``: what callers may ask for, and what they are shown."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.delivery.publishing.tables import PlacementRow
from app.runtime.settings import FolderPublisher, Settings
from app.services import Services
from tests.support.workshop import Workshop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "published"
    path.mkdir()
    return path


@pytest.fixture
def settings(settings: Settings, folder: Path) -> Settings:
    publishers = {"shelf": FolderPublisher(kind="folder", path=folder)}
    return settings.model_copy(update={"publishers": publishers})


def _settle(services: Services) -> None:
    publisher = services.publisher()
    with services.database.transaction() as session:
        rows = session.scalars(select(PlacementRow.id)).all()
    for placement_id in rows:
        assert publisher.settle(placement_id)


def test_a_model_is_published_shown_and_removed(
    workshop: Workshop, services: Services, api: TestClient, folder: Path
) -> None:
    workshop.train()
    assert api.get("/v1/models/model/targets").json() == []
    asked = api.put("/v1/models/model/targets/shelf")
    assert asked.status_code == 202
    assert asked.json()["state"] == "pending"
    _settle(services)
    (shown,) = api.get("/v1/models/model/targets").json()
    assert shown["checked_at"]
    assert {name: shown[name] for name in ("target", "kind", "wanted", "state", "version")} == {
        "target": "shelf",
        "kind": "folder",
        "wanted": True,
        "state": "settled",
        "version": 1,
    }
    assert shown["present"] == [1]
    assert str(folder) not in str(shown)

    assert api.delete("/v1/models/model/targets/shelf").status_code == 202
    (shown,) = api.get("/v1/models/model/targets").json()
    assert (shown["wanted"], shown["present"]) == (False, [1])
    _settle(services)
    assert api.get("/v1/models/model/targets").json() == []
    assert list(folder.iterdir()) == []


def test_why_a_target_fails_is_shown_and_asking_again_tries_at_once(
    workshop: Workshop, services: Services, api: TestClient, folder: Path
) -> None:
    workshop.train()
    api.put("/v1/models/model/targets/shelf")
    folder.rmdir()
    _settle(services)
    (shown,) = api.get("/v1/models/model/targets").json()
    assert (shown["state"], shown["failure"]) == ("failing", "the folder does not exist")
    assert shown["attempts"] == 1
    folder.mkdir()
    again = api.put("/v1/models/model/targets/shelf").json()
    assert again["attempts"] == 0
    _settle(services)
    (shown,) = api.get("/v1/models/model/targets").json()
    assert (shown["state"], shown["failure"]) == ("settled", None)


def test_only_targets_of_the_settings_may_be_named(workshop: Workshop, api: TestClient) -> None:
    workshop.define()
    answer = api.put("/v1/models/model/targets/elsewhere")
    assert answer.status_code == 422
    assert "shelf" in answer.json()["detail"]
    assert api.delete("/v1/models/model/targets/shelf").status_code == 404
    assert api.put("/v1/models/missing/targets/shelf").status_code == 404
    assert api.put("/v1/models/model/targets/..%2Fx").status_code in (404, 422)


def test_an_archived_model_is_not_published(workshop: Workshop, api: TestClient) -> None:
    workshop.train()
    workshop.archive()
    assert api.put("/v1/models/model/targets/shelf").status_code == 410

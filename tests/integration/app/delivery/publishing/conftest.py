"""A service that may publish in a folder."""

from pathlib import Path

import pytest

from app.runtime.settings import FolderPublisher, Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "published"
    path.mkdir()
    return path


@pytest.fixture
def settings(settings: Settings, folder: Path) -> Settings:
    publishers = {"shelf": FolderPublisher(kind="folder", path=folder)}
    return settings.model_copy(update={"publishers": publishers})

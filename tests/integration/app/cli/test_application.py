"""What the API tells its operator when it starts."""

from pathlib import Path

import pytest

from app.cli import application as main
from app.domain.errors import ConfigurationError
from app.runtime.database import Database
from app.runtime.database.engine import require_none
from app.runtime.locations import is_key_store_apart, key_store_dir
from app.runtime.settings import Settings

WARNING = "the key store lies in the data directory"


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture):
    def start() -> bool:
        caplog.clear()
        main.app_from_environment().state.services.database.dispose()
        told = [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]
        assert all("EXPUNGE_KEY_STORE_DIR" in line for line in told)
        return bool(told)

    return start


@pytest.mark.parametrize("environment", ["production", "development", "test"])
def test_keys_beside_the_objects_are_warned_of_in_production(
    settings: Settings, warned, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    monkeypatch.setenv("EXPUNGE_ENVIRONMENT", environment)
    assert warned() == (environment == "production")


def test_a_key_store_of_its_own_is_not_warned_of(
    settings: Settings, warned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EXPUNGE_ENVIRONMENT", "production")
    apart = tmp_path / "keys-of-data"
    key_store_dir(settings).rename(apart)
    monkeypatch.setenv("EXPUNGE_KEY_STORE_DIR", str(apart))
    assert not warned()


def test_a_link_counts_for_where_it_leads(settings: Settings, tmp_path: Path) -> None:
    inside = settings.data_dir / "keys" / "blobs"
    link = tmp_path / "link"
    link.symlink_to(inside)
    assert not is_key_store_apart(settings.model_copy(update={"key_store_dir": link}))
    apart = tmp_path / "apart"
    inside.rename(apart)
    inside.symlink_to(apart)
    assert is_key_store_apart(settings)
    sibling = settings.data_dir.with_name(settings.data_dir.name + "-keys")
    assert is_key_store_apart(settings.model_copy(update={"key_store_dir": sibling}))


def test_it_says_at_the_database_that_it_runs(settings: Settings, database_url: str) -> None:
    api = main.app_from_environment().state.services.database
    others = Database(database_url)
    with pytest.raises(ConfigurationError, match="the service runs: API"):
        require_none(others)
    api.dispose()
    require_none(others)

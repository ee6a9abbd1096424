"""Settings from the environment, and secrets from files."""

from pathlib import Path

import pytest

from app.domain.errors import ConfigurationError
from app.runtime.settings import Settings


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXPUNGE_SECRETS_DIR", str(tmp_path))
    return tmp_path


def test_a_secret_is_read_from_its_file(secrets: Path) -> None:
    (secrets / "expunge_database_url").write_text("postgresql+psycopg://a:b@db/expunge\n")
    (secrets / "EXPUNGE_S3_SECRET_KEY").write_text("secret\n")
    (secrets / "postgres_password").write_text("another program's")

    settings = Settings()

    assert settings.database_url == "postgresql+psycopg://a:b@db/expunge"
    assert settings.s3_secret_key is not None
    assert settings.s3_secret_key.get_secret_value() == "secret"
    assert "secret" not in repr(settings.s3_secret_key)


def test_a_variable_wins_over_a_file(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (secrets / "expunge_redis_url").write_text("redis://file")
    monkeypatch.setenv("EXPUNGE_REDIS_URL", "redis://variable")

    assert Settings().redis_url == "redis://variable"


def test_a_directory_of_secrets_that_is_named_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the service would run with servers of its own, and look well."""
    monkeypatch.setenv("EXPUNGE_SECRETS_DIR", str(tmp_path / "missing"))

    with pytest.raises(ConfigurationError, match="missing"):
        Settings()


def test_without_any_nothing_is_said(recwarn: pytest.WarningsRecorder) -> None:
    assert Settings().database_url is None
    assert not recwarn.list


def test_a_list_in_a_file_is_read_as_json(secrets: Path) -> None:
    (secrets / "expunge_allowed_factories").write_text('["nets:build"]')

    assert Settings().allowed_factories == ("nets:build",)


def test_a_file_that_lacks_the_prefix_is_refused(secrets: Path) -> None:
    """It would set nothing, and the service would run with servers of its own, and look well."""
    (secrets / "database_url").write_text("postgresql+psycopg://a:b@db/expunge")

    with pytest.raises(ConfigurationError, match="did you mean EXPUNGE_DATABASE_URL"):
        Settings()


@pytest.mark.parametrize(
    ("name", "url", "told"),
    [
        ("database_url", "postgresql://a:hidden@db/expunge", r"begin with postgresql\+psycopg://"),
        ("migration_url", "hidden", r"begin with postgresql\+psycopg://"),
        ("database_url", "postgresql+psycopg://a:hid@den@db/expunge", "write it as %40"),
        ("database_url", "postgresql+psycopg://a:b@db:hidden/expunge", "cannot be read"),
        ("redis_url", "127.0.0.1:6379", "begin with redis://"),
        ("redis_url", "http://a:hidden@redis", "begin with redis://"),
        ("redis_url", "redis://redis:hidden/0", "cannot be read"),
    ],
)
def test_a_servers_url_that_cannot_be_one_is_refused_unquoted(
    name: str, url: str, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^EXPUNGE_{name.upper()}: .*{told}") as caught:
        Settings(**{name: url})
    assert "hid" not in str(caught.value)


@pytest.mark.parametrize("path", ["nets.build", "nets:", "nets:b*", "*", "nets:build:x", "os.py"])
def test_what_can_be_no_factory_is_refused(path: str) -> None:
    """It would allow nothing, and only the first run would say so."""
    with pytest.raises(ConfigurationError, match=r"^EXPUNGE_ALLOWED_FACTORIES: .*MODULE:FUNCTION"):
        Settings(allowed_factories=("nets:build", path))


def test_factories_are_named_one_by_one_or_by_their_module() -> None:
    paths = ("nets:build", "deep.nets:*", "tasks:Counts")
    assert Settings(allowed_factories=paths).allowed_factories == paths


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e30])
@pytest.mark.parametrize("name", ["lease_s"])
def test_seconds_have_an_end(name: str, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=f"^EXPUNGE_{name.upper()}: "):
        Settings(**{name: seconds})


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("database_url", "postgresql+psycopg:///expunge?host=/run/postgresql"),
        ("database_url", "postgresql+psycopg://a:b%40@[::1]:5432/expunge"),
        ("redis_url", "rediss://:secret@redis:6380/1"),
        ("redis_url", "unix:///run/redis.sock"),
    ],
)
def test_a_servers_url_is_taken_as_it_is(name: str, url: str) -> None:
    assert getattr(Settings(**{name: url}), name) == url


VAULT = {"vault_key": "expunge", "vault_url": "https://vault.example"}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "needs EXPUNGE_VAULT_TOKEN_FILE, or"),
        ({"vault_role_id": "role"}, "needs EXPUNGE_VAULT_TOKEN_FILE, or"),
        (
            {"vault_token_file": "t", "vault_role_id": "role", "vault_secret_id": "secret"},
            "needs EXPUNGE_VAULT_TOKEN_FILE, or",
        ),
        ({"vault_token_file": "t", "kms_key": "alias/expunge"}, "EXPUNGE_KMS_KEY is set too"),
    ],
)
def test_a_vault_needs_one_way_in_and_no_kms(more: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError, match="^EXPUNGE_VAULT_KEY: .*" + told):
        Settings(**VAULT, **more)


def test_a_vault_is_entered_with_a_token_or_as_a_role() -> None:
    assert Settings(**VAULT, vault_token_file="t").vault_token_file == Path("t")
    assert Settings(**VAULT, vault_role_id="role", vault_secret_id="s").vault_role_id == "role"

"""Real servers for the whole session, a fresh database for each test that asks for one."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from redis import Redis
from sqlalchemy import Engine, NullPool, create_engine, text

from app.access import api_keys
from app.cli.application import create_app
from app.domain.states import Scope
from app.evidence.certificates.processor_signing import ensure_self_signed, load_processor_key
from app.ledger.models import definitions
from app.operations import schema
from app.runtime.database import engine
from app.runtime.embedded import EmbeddedServers
from app.runtime.locations import (
    callback_key_file,
    key_store_dir,
    opendsr_certificate_file,
    opendsr_domain,
    opendsr_key_file,
    pseudonym_key_file,
    redis_connection,
)
from app.runtime.settings import Settings
from app.services import Services, create_keys, open_services
from tests.support.built_once import built_once
from tests.support.key_keepers import Directory, Keeper, Kms, Vault, running
from tests.support.logbook import faults
from tests.support.receiver import Receiver
from tests.support.splits import fairly_split
from tests.support.working import working
from tests.support.workshop import Workshop

_TEMPLATE = "expunge_template"

# No test depends on how fast the machine is.
hypothesis_settings.register_profile(
    "patient",
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
hypothesis_settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="session")
def _clean_environment() -> None:
    """Keep the developer's own EXPUNGE_ settings out of the tests."""
    for name in [name for name in os.environ if name.startswith("EXPUNGE_")]:
        del os.environ[name]


@pytest.fixture(scope="session")
def servers() -> Iterator[EmbeddedServers]:
    """PostgreSQL and Redis for all tests; what they hold may be lost, so nothing is synced."""
    with tempfile.TemporaryDirectory(prefix="expunge-tests-") as directory:
        servers = EmbeddedServers(Path(directory))
        servers.start()
        with as_admin(servers) as execute:
            execute("ALTER SYSTEM SET fsync = off")
            execute("ALTER SYSTEM SET synchronous_commit = off")
            execute("SELECT pg_reload_conf()")
        yield servers
        servers.stop()


@pytest.fixture(scope="session")
def template(servers: EmbeddedServers) -> str:
    """The name of a migrated, empty database."""
    with as_admin(servers) as execute:
        execute(f"CREATE DATABASE {_TEMPLATE}")
    schema.upgrade(
        servers.migration_url.replace("/expunge?", f"/{_TEMPLATE}?"),
        service_url=url_of(servers, _TEMPLATE),
    )
    return _TEMPLATE


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Who is called back."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def database_url(servers: EmbeddedServers, template: str) -> Iterator[str]:
    """A migrated, empty database of this test's own."""
    name = f"test_{uuid4().hex}"
    with as_admin(servers) as execute:
        execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield url_of(servers, name)
    with as_admin(servers) as execute:
        execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def _compiled_once(servers: EmbeddedServers, template: str) -> Iterator[None]:
    """Have all tests' engines share what is known of the server, and the statements they compile.

    Else each test would compile every statement that it uses.
    """
    made = engine._engine
    first = made(url_of(servers, template), 1000, connections=1)
    with first.connect():
        pass
    first.dispose()

    def share(url: str, limit_ms: int, **options: Any) -> Engine:
        fresh = made(url, limit_ms, **options)
        fresh.dialect.initialize = lambda _: None  # type: ignore[method-assign]
        fresh.dialect, fresh._compiled_cache = first.dialect, first._compiled_cache
        return fresh

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_engine", share)
        yield


@pytest.fixture(scope="session", autouse=True)
def _built_once() -> Iterator[None]:
    with built_once():
        yield


@pytest.fixture(scope="session")
def key_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys that sign, for all tests: making them takes a while."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("keys"))
    create_keys(settings)
    # Under other keys, callers and objects are others for what is stored once for all tests.
    shutil.rmtree(key_store_dir(settings))
    pseudonym_key_file(settings).unlink()
    callback_key_file(settings).unlink()
    key = load_processor_key(opendsr_key_file(settings), create=True)
    certificate = opendsr_certificate_file(settings)
    ensure_self_signed(certificate, key, domain=opendsr_domain(settings))
    return settings.data_dir / "keys"


@pytest.fixture(scope="session")
def kms() -> Iterator[Kms]:
    """A KMS for all tests that do not stop it."""
    with running(Kms) as kms:
        yield kms


@pytest.fixture(scope="session")
def vault() -> Iterator[Vault]:
    """A Vault for all tests that change nothing in it."""
    with running(Vault) as vault:
        yield vault


@pytest.fixture
def keeper(request: pytest.FixtureRequest) -> Keeper:
    """Where keys of periods are kept: the directory, unless a test is run for every place."""
    name = getattr(request, "param", "directory")
    return Directory() if name == "directory" else request.getfixturevalue(name)


@pytest.fixture
def settings(
    servers: EmbeddedServers,
    keeper: Keeper,
    database_url: str,
    key_files: Path,
    _compiled_once: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    """Settings of a service with keys and an empty database; also in the environment."""
    monkeypatch.setenv("EXPUNGE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("EXPUNGE_DATABASE_URL", database_url)
    monkeypatch.setenv("EXPUNGE_REDIS_URL", servers.redis_url)
    monkeypatch.setenv("EXPUNGE_ENVIRONMENT", "test")
    monkeypatch.setenv("EXPUNGE_FAILED_ATTEMPTS_PER_MINUTE", "0")
    for name, value in keeper.variables.items():
        monkeypatch.setenv(f"EXPUNGE_{name}", value)
    settings = Settings()
    shutil.copytree(key_files, settings.data_dir / "keys")
    create_keys(settings)
    return settings


@pytest.fixture
def services(settings: Settings) -> Iterator[Services]:
    """The services over this test's own database."""
    services = open_services(settings)
    yield services
    services.database.dispose()


@pytest.fixture
def workshop(services: Services) -> Workshop:
    """A dataset of forty records, and every step of a run by hand."""
    return Workshop(services)


@pytest.fixture
def admin_key(services: Services) -> str:
    """The secret of a key that may do everything."""
    with services.database.transaction() as session:
        return api_keys.create_key(session, name="admin", scopes=[Scope.ADMIN])[1]


@pytest.fixture
def api(
    services: Services, admin_key: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    """The API with an admin key; models learn from the first people that they are given."""
    monkeypatch.setattr(definitions, "define_model", fairly_split(definitions.define_model))
    with TestClient(
        create_app(services), headers={"Authorization": f"Bearer {admin_key}"}
    ) as client:
        yield client


@pytest.fixture
def work(services: Services) -> Iterator[Callable[[], None]]:
    """Dispatch and work, through the real queue, until nothing is left to do.

    In the end the log tells of all that was done.
    """
    yield working(services)
    assert faults(services) == []


@contextmanager
def as_admin(servers: EmbeddedServers) -> Iterator[Callable[[str], object]]:
    """Run statements outside of transactions on the servers' maintenance database."""
    url = servers.migration_url.replace("/expunge?", "/postgres?")
    admin = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with admin.connect() as connection:
        yield lambda statement: connection.execute(text(statement))


def url_of(servers: EmbeddedServers, database: str) -> str:
    """Return where the service finds a database of these servers."""
    return servers.database_url.replace("/expunge?", f"/{database}?")


@pytest.fixture
def redis(services: Services) -> Redis:
    """The service's Redis, empty."""
    connection = redis_connection(services.settings)
    connection.flushdb()
    return connection

"""Where the parts of the service are, by its settings: servers, files, addresses, stores."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from redis import Redis

from app.runtime.database import Database
from app.runtime.embedded import EmbeddedServers
from app.runtime.embedded.home import ClaimedError, claimed
from app.runtime.keyfiles import not_set_up
from app.runtime.settings import Settings


def database_url(settings: Settings) -> str:
    """Return the configured database, or the embedded one's URL."""
    return settings.database_url or EmbeddedServers(settings.data_dir).database_url


def migration_url(settings: Settings) -> str:
    """Return the URL of the role that owns the tables; with one URL of your own, that one."""
    if settings.database_url is None:
        return EmbeddedServers(settings.data_dir).migration_url
    return settings.migration_url or settings.database_url


@contextmanager
def embedded_postgres(settings: Settings, *, create: bool = False) -> Iterator[None]:
    """Ensure that PostgreSQL runs: the embedded one is started, and stopped again at the end.

    One that does not exist is an error without ``create``.

    Raises:
        ClaimedError: it does not run, and another process is starting or stopping it.
    """
    servers = EmbeddedServers(settings.data_dir)
    if settings.database_url is not None or servers.postgres.running():
        yield
        return
    if not (create or servers.postgres.exists()):
        raise not_set_up(settings.data_dir)
    with ExitStack() as held:
        try:
            held.enter_context(claimed(settings.data_dir))
        except ClaimedError as error:
            raise ClaimedError(
                "PostgreSQL does not answer, and another expunge is starting or stopping it: "
                f"repeat the command; if that does not help, see {servers.postgres.log}"
            ) from error
        servers.start_postgres()
        try:
            yield
        finally:
            servers.stop_postgres()


@contextmanager
def database_at_rest(settings: Settings) -> Iterator[Database]:
    """Give access to the ledger whether or not the service is running."""
    with embedded_postgres(settings):
        database = Database(database_url(settings))
        try:
            yield database
        finally:
            database.dispose()


def redis_url(settings: Settings) -> str:
    """Return the configured Redis, or the embedded one's URL."""
    return settings.redis_url or EmbeddedServers(settings.data_dir).redis_url


def redis_connection(settings: Settings) -> Redis:
    """Return a client of the configured Redis; it connects when first used."""
    return Redis.from_url(redis_url(settings))


def signing_key_file(settings: Settings) -> Path:
    """Where the private signing key lies."""
    return settings.data_dir / "keys" / "signing-ed25519.pem"


def model_signing_key_file(settings: Settings) -> Path:
    """Where the private key that signs weight files lies."""
    return settings.data_dir / "keys" / "model-signing-p256.pem"


def pseudonym_key_file(settings: Settings) -> Path:
    """Where the key of the owners' pseudonyms lies."""
    return settings.data_dir / "keys" / "pseudonyms.key"


def callback_key_file(settings: Settings) -> Path:
    """Where the key lies that encrypts callbacks' addresses and signs them."""
    return settings.data_dir / "keys" / "callbacks.key"


def opendsr_key_file(settings: Settings) -> Path:
    """Where the private key lies that signs for OpenDSR."""
    return settings.data_dir / "keys" / "opendsr.pem"


def opendsr_certificate_file(settings: Settings) -> Path:
    """Where that key's certificate lies."""
    return settings.data_dir / "keys" / "opendsr.crt"


def public_url(settings: Settings) -> str:
    """Return where callers find this service, without a slash at its end."""
    if settings.public_url is None:
        return f"http://{settings.host}:{settings.port}"
    return str(settings.public_url).rstrip("/")


def opendsr_domain(settings: Settings) -> str:
    """Return the domain in whose name OpenDSR messages are signed."""
    return urlsplit(public_url(settings)).hostname or settings.host


def key_store_dir(settings: Settings) -> Path:
    """Where the keys of the stored objects lie."""
    return settings.key_store_dir or settings.data_dir / "keys" / "blobs"


def is_key_store_apart(settings: Settings) -> bool:
    """Return whether the key store is outside of the data directory."""
    return not key_store_dir(settings).resolve().is_relative_to(settings.data_dir.resolve())


def object_dir(settings: Settings) -> Path:
    """Where objects are stored without a bucket."""
    return settings.data_dir / "blobs"

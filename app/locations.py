"""Where the parts of the service are, by its settings: servers, files, addresses, stores."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from redis import Redis

from app.database import Database
from app.domain.errors import ConfigurationError
from app.embedded import EmbeddedServers
from app.embedded.claim import ClaimedError, claimed
from app.publisher_settings import revealed
from app.settings import Settings
from app.storage.aws import Access
from app.storage.file_keys import FileKeyStore
from app.storage.keyfiles import not_set_up
from app.storage.kms import KmsKey
from app.storage.objects import LocalObjectStore, ObjectStore
from app.storage.s3 import S3ObjectStore
from app.storage.vault import Login, VaultKey
from app.storage.wrapping import InDirectory, InService, Succession, Wrapping


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
    return settings.opendsr_key_file or settings.data_dir / "keys" / "opendsr.pem"


def opendsr_certificate_file(settings: Settings) -> Path:
    """Where that key's certificate lies."""
    return settings.opendsr_certificate_file or settings.data_dir / "keys" / "opendsr.crt"


def public_url(settings: Settings) -> str:
    """Return where callers find this service, without a slash at its end."""
    if settings.public_url is None:
        return f"http://{settings.host}:{settings.port}"
    return str(settings.public_url).rstrip("/")


def opendsr_domain(settings: Settings) -> str:
    """Return the domain in whose name OpenDSR messages are signed."""
    if settings.opendsr_domain is not None:
        return settings.opendsr_domain
    return urlsplit(public_url(settings)).hostname or settings.host


def key_store_dir(settings: Settings) -> Path:
    """Where the keys of the stored objects lie."""
    return settings.key_store_dir or settings.data_dir / "keys" / "blobs"


def key_store(
    settings: Settings, *, create: bool = False, before: Wrapping | None = None
) -> FileKeyStore:
    """Open the store of those keys; with ``create``, make it if it is missing.

    What ``before`` wrapped is still unwrapped.

    Raises:
        ConfigurationError: it is missing, or accessible to others.
    """
    wrapping = key_wrapping(settings)
    if before is not None:
        wrapping = Succession(wrapping, before)
    return FileKeyStore(key_store_dir(settings), wrapping=wrapping, create=create)


def key_wrapping(settings: Settings) -> Wrapping:
    """Return what wraps its periods' keys: a key of KMS or of Vault, or nothing."""
    if settings.kms_key is not None:
        return InService(KmsKey(settings.kms_key, **_access(settings, "kms")))
    if settings.vault_key is None or settings.vault_url is None:
        return InDirectory()
    login = Login(
        token_file=settings.vault_token_file,
        role_id=settings.vault_role_id,
        secret_id=revealed(settings.vault_secret_id),
    )
    return InService(
        VaultKey(
            settings.vault_url,
            settings.vault_key,
            login,
            mount=settings.vault_mount,
            namespace=settings.vault_namespace,
            ca_file=settings.vault_ca_file,
        )
    )


def earlier_wrapping(settings: Settings, where: str) -> Wrapping:
    """Return what wrapped the periods' keys before: ``directory``, ``kms:KEY`` or ``vault:KEY``.

    The service is where the settings say, and is entered as they say.

    Raises:
        ConfigurationError: it is none of these, or the settings do not say where it is.
    """
    service, _, key = where.partition(":")
    if where == "directory":
        return InDirectory()
    if service == "kms" and key:
        return key_wrapping(settings.model_copy(update={"kms_key": key}))
    if service == "vault" and key and settings.vault_url is not None:
        return key_wrapping(settings.model_copy(update={"kms_key": None, "vault_key": key}))
    raise ConfigurationError(
        f"{where} is not directory, kms:KEY or vault:KEY; for a Vault, set EXPUNGE_VAULT_URL too"
    )


def is_key_store_apart(settings: Settings) -> bool:
    """Return whether the key store is outside of the data directory."""
    return not key_store_dir(settings).resolve().is_relative_to(settings.data_dir.resolve())


def object_dir(settings: Settings) -> Path:
    """Where objects are stored without a bucket."""
    return settings.data_dir / "blobs"


def object_store(settings: Settings) -> ObjectStore:
    """Return the configured bucket, or the data directory's own store."""
    if settings.s3_bucket is None:
        return LocalObjectStore(object_dir(settings))
    return S3ObjectStore(settings.s3_bucket, prefix=settings.s3_prefix, **_access(settings, "s3"))


def _access(settings: Settings, service: Literal["kms", "s3"]) -> Access:
    """Return how a service of Amazon's is reached: the settings whose names begin with its own."""
    return Access(
        endpoint=getattr(settings, f"{service}_endpoint"),
        region=getattr(settings, f"{service}_region"),
        access_key=revealed(getattr(settings, f"{service}_access_key")),
        secret_key=revealed(getattr(settings, f"{service}_secret_key")),
    )

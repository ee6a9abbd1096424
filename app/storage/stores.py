"""Opens the stores of objects and of their keys, as the settings say."""

from app.domain.errors import ConfigurationError
from app.runtime.locations import key_store_dir, object_dir
from app.runtime.settings import Settings, revealed
from app.storage.aws import KmsKey, S3ObjectStore
from app.storage.file_keys import FileKeyStore, InDirectory, InService, Succession, Wrapping
from app.storage.objects import LocalObjectStore, ObjectStore
from app.storage.vault import Login, VaultKey


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
        return InService(KmsKey(settings.kms_key))
    if settings.vault_key is None or settings.vault_url is None:
        return InDirectory()
    mount, _, key = settings.vault_key.rpartition("/")
    login = Login(
        token_file=settings.vault_token_file,
        role_id=settings.vault_role_id,
        secret_id=revealed(settings.vault_secret_id),
    )
    return InService(
        VaultKey(
            settings.vault_url,
            key,
            login,
            mount=mount or "transit",
            namespace=settings.vault_namespace,
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


def object_store(settings: Settings) -> ObjectStore:
    """Return the configured bucket, or the data directory's own store."""
    if settings.s3_bucket is None:
        return LocalObjectStore(object_dir(settings))
    bucket, _, folder = settings.s3_bucket.rstrip("/").partition("/")
    return S3ObjectStore(
        bucket,
        prefix=f"{folder}/" if folder else "",
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        access_key=revealed(settings.s3_access_key),
        secret_key=revealed(settings.s3_secret_key),
    )

"""Configuration, read once from the environment (``EXPUNGE_…``)."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Everything that an operator may set. Secrets have no default.

    Attributes:
        data_dir: keys, blobs and the embedded servers' files.
        database_url, redis_url: servers of your own; the embedded ones when unset.
        migration_url: the database under the role that owns the tables. It is used by ``expunge
            init`` alone and makes the database refuse that the service rewrites its log.
        environment: ``production`` refuses every stand-in that is named insecure.
        host, port: where the API listens.
        api_url, api_key: where the command line finds the API, and its key.
        allowed_factories: import paths of model factories that workers may call.
        max_upload_bytes: the largest request body that is accepted.
        lease_s: how long a run stays with a worker that has gone silent.
        max_attempts: how often a run is tried before it has failed for good.
        poll_interval_s: how often the dispatcher looks for work.
        checkpoint_interval_s: how old a signed checkpoint of a log that has grown may get; one is
            also signed with every certificate.
        key_store_dir: keys of the stored objects; ``keys/blobs`` in the data directory when unset.
        key_period_s: how long the key that wraps those keys lives.
        session_s: how long a login to the operator's page lasts.
        s3_bucket: where objects are stored instead of in the data directory.
        s3_endpoint, s3_region: the server, if it is not Amazon's, and its region.
        s3_prefix: what all names in the bucket begin with.
        s3_access_key, s3_secret_key: otherwise found where Amazon's own tools look for them.
    """

    model_config = SettingsConfigDict(env_prefix="EXPUNGE_", extra="ignore", frozen=True)

    data_dir: Path = Path(".expunge")
    database_url: str | None = None
    migration_url: str | None = None
    redis_url: str | None = None
    environment: Literal["production", "development", "test"] = "production"
    host: str = "127.0.0.1"
    port: int = Field(default=8100, ge=0, le=65535)
    api_url: str | None = None
    api_key: SecretStr | None = None
    allowed_factories: tuple[str, ...] = ()
    max_upload_bytes: int = Field(default=512 * 1024**2, ge=1)
    lease_s: float = Field(default=30.0, gt=0)
    max_attempts: int = Field(default=3, ge=1)
    poll_interval_s: float = Field(default=0.25, gt=0)
    checkpoint_interval_s: float = Field(default=60.0, ge=0)
    key_store_dir: Path | None = None
    key_period_s: float = Field(default=86400.0, gt=0)
    session_s: float = Field(default=8 * 3600.0, ge=1)
    s3_bucket: str | None = None
    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_prefix: str = ""
    s3_access_key: SecretStr | None = None
    s3_secret_key: SecretStr | None = None

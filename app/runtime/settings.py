"""Configuration, read once from the environment (``EXPUNGE_…``) or from files of secrets."""

import difflib
import json
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    HttpUrl,
    IPvAnyNetwork,
    SecretStr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

from app.domain import extras
from app.domain.architectures import IMPORT_PATH
from app.domain.checks import is_safe_url
from app.domain.errors import ConfigurationError
from app.domain.places import prefix_of
from app.domain.policy import TEN_YEARS_S
from app.domain.states import MOST_DEVICES, Scope


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


class _Publisher(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class FolderPublisher(_Publisher):
    """A folder on the dispatcher's machine, with one folder for each model in it.

    Attributes:
        path: of the folder; it must exist.
    """

    kind: Literal["folder"]
    path: Annotated[Path, AfterValidator(_absolute)]


class S3Publisher(_Publisher):
    """A bucket with one folder for each model.

    Attributes:
        bucket: its name.
        prefix: what all names begin with, such as ``models/``.
        endpoint: the server, if it is not Amazon's.
        region: the bucket's region.
        access_key: when unset, found where Amazon's own tools look for it.
        secret_key: that key's secret; likewise.
    """

    kind: Literal["s3"]
    bucket: str = Field(min_length=1)
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    access_key: SecretStr | None = None
    secret_key: SecretStr | None = None


class MlflowPublisher(_Publisher):
    """The model registry of an MLflow server that serves artifacts itself.

    Attributes:
        url: of the server.
        prefix: what the names of registered models begin with, before the model's.
        experiment: which holds one run for each model; made when it is missing.
        username: for servers with MLflow's own login.
        password: of that user.
        token: a bearer token, instead of these two.
        ca_file: certificates of the authorities to trust instead of the usual ones.
    """

    kind: Literal["mlflow"]
    url: HttpUrl
    prefix: str = Field(default="", pattern=r"^[A-Za-z0-9._-]*$")
    experiment: str = Field(default="expunge", pattern=r"^[A-Za-z0-9._-]+$")
    username: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    ca_file: Path | None = None

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")
        if self.username is not None and self.token is not None:
            raise ValueError("set username and password, or token: not both")
        return self


Publisher = Annotated[FolderPublisher | S3Publisher | MlflowPublisher, Field(discriminator="kind")]
TargetName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
]


def revealed(secret: SecretStr | None) -> str | None:
    """Return a secret's text, or None for None."""
    return None if secret is None else secret.get_secret_value()


PREFIX = "EXPUNGE_"
SECRETS_DIR_VARIABLE = "EXPUNGE_SECRETS_DIR"
_NOT_SETTINGS = {
    SECRETS_DIR_VARIABLE,
    "EXPUNGE_SUPERVISOR_PID",
    # docker-compose.yml reads these, so they may be in the environment where it is started.
    "EXPUNGE_PUBLISH",
    "EXPUNGE_WORKER_CPUS",
    "EXPUNGE_WORKER_MEMORY_LIMIT",
}
_NOT_SETTINGS_PREFIXES = ("EXPUNGE_TEST_", "EXPUNGE_BENCH_")


def variable_of(field: str) -> str:
    """Return the variable that sets a field of the settings."""
    return PREFIX + field.upper()


def unknown_names(names: Iterable[str], fields: Iterable[str]) -> Iterator[str]:
    """Say of each name with our prefix that it sets nothing, and which one may be meant."""
    known = [*map(variable_of, fields), *_NOT_SETTINGS]
    for name in sorted(names):
        variable = name.upper()
        if not variable.startswith(PREFIX) or variable in known:
            continue
        if variable.startswith(_NOT_SETTINGS_PREFIXES):
            continue
        near = difflib.get_close_matches(variable, known, n=1, cutoff=0.75)
        advice = f"did you mean {near[0]}?" if near else "the documentation lists all"
        yield f"{name}: there is no such setting; {advice}"


def nameless_files(names: Iterable[str], fields: Iterable[str]) -> Iterator[str]:
    """Say of each file that is named as a setting without our prefix that it sets nothing."""
    known = set(fields)
    for name in sorted(names):
        if name.lower() in known:
            yield f"{name}: a file of this name sets nothing; did you mean {variable_of(name)}?"


def decoded(text: str, annotation: Any) -> Any:  # noqa: ANN401 - whatever the annotation is
    """Return the list or mapping that a text holds, or the text if the annotation is neither.

    Either JSON, or items with commas between them; those of a mapping are NAME=VALUE.

    Raises:
        ValueError: it is neither.
    """
    kind = get_origin(annotation)
    if kind not in (tuple, dict):
        return text
    if text.lstrip().startswith(("[", "{")):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError("is not valid JSON") from error
    items = [item.strip() for item in text.split(",") if item.strip()]
    if kind is tuple:
        return items
    pairs = [(name.strip(), found.strip()) for name, _, found in (i.partition("=") for i in items)]
    if not all(name and found for name, found in pairs):
        raise ValueError("must be NAME=VALUE pairs with commas between them, or a JSON object")
    if get_origin(get_args(annotation)[1]) is tuple:
        return {name: [found for other, found in pairs if other == name] for name, _ in pairs}
    if len(dict(pairs)) != len(pairs):
        raise ValueError("has the same name twice")
    return dict(pairs)


SECRETS_DIR = "/run/secrets"

_PARTS: Final = {
    "traces": "app.runtime.tracing",
    "witnesses": "app.evidence.witnesses",
    "devices": "workers.distributed",
    "opendsr_datasets": "app.opendsr",
    "opendsr_identity_types": "app.opendsr",
}
"""What a setting asks for that an installation may lack."""


def _safe_url(url: str) -> str:
    if not is_safe_url(url):
        raise ValueError("must be an https:// URL, or http:// on this very machine")
    return url


def _factories(path: str) -> str:
    example = f"{path[:-1]}any" if path.endswith(":*") else path
    if not IMPORT_PATH.fullmatch(example):
        raise ValueError("must be MODULE:FUNCTION, or MODULE:* for all of a module")
    return path


def _url_of(*schemes: str) -> AfterValidator:
    """Check that a server's URL can be read, and begins with one of these; never quote it."""

    def check(url: str) -> str:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise ValueError("has a host or port that cannot be read") from error
        if parts.scheme not in schemes or "://" not in url:
            raise ValueError(f"must begin with {' or '.join(f'{each}://' for each in schemes)}")
        if "@" in parts.netloc.rpartition("@")[0]:
            raise ValueError("has an @ in its password: write it as %40")
        return url

    return AfterValidator(check)


class Settings(BaseSettings):
    """Everything that an operator may set. Secrets have no default.

    Any setting may also be the content of a file of the variable's name, in either case, in the
    directory ``EXPUNGE_SECRETS_DIR`` (``/run/secrets``, where containers get theirs). A variable
    wins over a file. A list is written with commas or as JSON. Names that are no setting's are
    refused, so that a misspelt one is not ignored.

    Attributes:
        data_dir: keys, stored objects and the embedded servers' files.
        database_url: a PostgreSQL of your own; the embedded one when unset.
        redis_url: a Redis of your own; the embedded one when unset.
        migration_url: the database under the role that owns the tables, ``database_url`` when
            unset. It is used by ``expunge init`` only, and lets the database prevent the service
            from rewriting its log.
        environment: ``production`` refuses every stand-in that is named insecure.
        log_format: ``json`` writes one object a line, and a line for every request.
        metrics_public: whether ``/metrics`` answers without an API key.
        traces: whether traces of forget requests are sent, by OTLP over HTTP to where the
            variables of OpenTelemetry say (``OTEL_EXPORTER_OTLP_ENDPOINT``). Needs the extra
            ``otel``.
        host: the address where the API listens.
        port: the port where the API listens.
        api_url: where the command line finds the API; the host and port above when unset.
        api_key: the command line's API key; that of ``expunge init`` here when unset.
        allowed_factories: import paths of model factories that workers may call.
        max_upload_bytes: the largest file that is accepted, packed and unpacked.
        max_connections: how many connections, and calls, there may be at once.
        max_ids_bytes: the largest JSON body that lists ids; the default takes 200,000 of 80 bytes.
        max_json_bytes: the largest of all other JSON bodies.
        cors_origins: web pages' origins from which browsers may call the API.
        lease_s: how long a run stays with a worker that no longer responds.
        max_attempts: how often a run is tried before it has failed for good.
        worker_memory: how much memory a run may use for weights and records, in bytes or as
            ``6GiB``; three quarters of what is free when a run begins when unset. What does not fit
            is streamed or refused; the programs themselves need 500 MB on top. Of a run on several
            devices, each process may use so much.
        devices: how many devices a run uses, with a process for each: that many GPUs, or processes
            on the CPU where there are none. Only training by a recipe, and the mechanisms that
            forget any start, are divided; other runs use one.
        key_store_dir: keys of the stored objects, which belong apart from the data and its backups;
            ``keys/blobs`` in the data directory when unset.
        kms_key: the key of AWS KMS that wraps the keys of periods: its id, ARN or alias. Where it
            is, and who calls it, is found where Amazon's own tools look.
        vault_key: the key of a transit engine that wraps the keys of periods, instead of KMS;
            ``mount/key`` where the engine is not mounted at ``transit``.
        vault_url: where that Vault is.
        vault_namespace: the namespace of Vault Enterprise that it is in.
        vault_token_file: a file with the token, which Vault's agent keeps valid.
        vault_role_id: the AppRole to log in as, where no such file is given.
        vault_secret_id: that role's secret.
        ca_file: certificates of authorities that callbacks and ``https://`` imports trust in
            addition to the usual ones.
        public_url: where callers find this service; ``http://host:port`` when unset.
        callback_allow_private: whether callbacks may go to addresses that are not public, and to
            these also without TLS.
        evidence_retention: how long after a request has ended the keyed hashes of the ids that it
            names are kept, and what opens its commitments, as ``P2192D`` (days). Then they are
            destroyed; certificates, log and receipts verify as before. Six years when unset.
        callback_retention_s: how long a delivered callback stays in the list of callbacks.
        opendsr_identity_types: types of OpenDSR's identities that hold our subjects' ids.
        opendsr_datasets: the datasets that OpenDSR's requests are about; empty: all.
        s3_bucket: where objects are stored instead of in the data directory; ``bucket/folder`` has
            all names begin with the folder.
        s3_endpoint: the server, if it is not Amazon's.
        s3_region: the bucket's region.
        s3_access_key: when unset, found where Amazon's own tools look for it.
        s3_secret_key: that key's secret; likewise.
        import_prefixes: the places under which imports may read: ``s3://bucket/folder``,
            ``gs://…``, ``file:///folder`` or ``https://host/folder``; empty: none.
        import_s3_endpoint: the server of ``s3://`` imports, if it is not Amazon's.
        import_s3_access_key: which may only read; when unset, found where Amazon's own tools look
            for it. Google's is always found where Google's tools look.
        import_s3_secret_key: that key's secret; likewise.
        publishers: the places where models may be published, by name, as a JSON object; best in a
            file of secrets. Models name them, and reach no other place.
        requests_per_minute: how many calls one caller may make in a minute; 0 is without limit.
        requests_burst: how many calls one caller may make in a second; 0 is without limit.
        failed_attempts_per_minute: how many wrong keys or tokens one address may send; 0 is
            without limit.
        trusted_proxies: addresses or networks whose ``X-Forwarded-For`` is believed.
        oidc_issuer: whose access tokens are accepted, besides API keys.
        oidc_audience: what these tokens must be meant for.
        oidc_scope_claim: the token's member that says what its bearer may do; dots go to nested
            ones.
        oidc_scopes: which scopes the issuer's own roles or groups have here.
        witnesses: where witnesses of the log are, each with its verifier key, as ``URL=KEY``; at
            most 8. The dispatcher asks them, and the API shows only their cosignatures.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="forbid",
        frozen=True,
        enable_decoding=False,
        hide_input_in_errors=True,
    )

    data_dir: Path = Path(".expunge")
    database_url: Annotated[str, _url_of("postgresql+psycopg")] | None = None
    migration_url: Annotated[str, _url_of("postgresql+psycopg")] | None = None
    redis_url: Annotated[str, _url_of("redis", "rediss", "unix")] | None = None
    environment: Literal["production", "development", "test"] = "production"
    log_format: Literal["text", "json"] = "text"
    metrics_public: bool = False
    traces: bool = False
    host: str = "127.0.0.1"
    port: int = Field(default=8100, ge=0, le=65535)
    api_url: str | None = None
    api_key: SecretStr | None = None
    allowed_factories: tuple[Annotated[str, AfterValidator(_factories)], ...] = ()
    max_upload_bytes: int = Field(default=512 * 1024**2, ge=1)
    max_connections: int = Field(default=4096, ge=1)
    max_ids_bytes: int = Field(default=16 * 1024**2, ge=1)
    max_json_bytes: int = Field(default=64 * 1024, ge=1)
    cors_origins: tuple[str, ...] = ()
    lease_s: float = Field(default=30.0, gt=0)
    max_attempts: int = Field(default=3, ge=1)
    worker_memory: ByteSize | None = Field(default=None, ge=1)
    devices: int = Field(default=1, ge=1, le=MOST_DEVICES)
    key_store_dir: Path | None = None
    kms_key: str | None = Field(default=None, min_length=1)
    vault_key: str | None = Field(default=None, min_length=1)
    vault_url: Annotated[str, AfterValidator(_safe_url)] | None = None
    vault_namespace: str | None = None
    vault_token_file: Path | None = None
    vault_role_id: str | None = None
    vault_secret_id: SecretStr | None = None
    ca_file: Path | None = None
    public_url: HttpUrl | None = None
    callback_allow_private: bool = False
    evidence_retention: timedelta = Field(default=timedelta(days=2192), ge=timedelta(0))
    callback_retention_s: float = Field(default=30 * 86400.0, ge=0)
    opendsr_identity_types: tuple[str, ...] = ("controller_customer_id",)
    opendsr_datasets: tuple[str, ...] = ()
    s3_bucket: str | None = None
    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_access_key: SecretStr | None = None
    s3_secret_key: SecretStr | None = None
    import_prefixes: tuple[Annotated[str, AfterValidator(lambda url: prefix_of(url).url)], ...] = ()
    import_s3_endpoint: str | None = None
    import_s3_access_key: SecretStr | None = None
    import_s3_secret_key: SecretStr | None = None
    publishers: dict[TargetName, Publisher] = {}
    requests_per_minute: int = Field(default=0, ge=0)
    requests_burst: int = Field(default=0, ge=0)
    failed_attempts_per_minute: int = Field(default=20, ge=0)
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    oidc_issuer: Annotated[str, AfterValidator(_safe_url)] | None = None
    oidc_audience: str | None = Field(default=None, min_length=1)
    oidc_scope_claim: str = Field(default="scope", min_length=1)
    oidc_scopes: dict[str, tuple[Scope, ...]] = {}
    witnesses: Annotated[dict[HttpUrl, str], Field(max_length=8)] = {}

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - whatever the fields hold
        """Read the settings; ``values`` win over variables and files.

        Raises:
            ConfigurationError: some are wrong; its message has a line for each, with its name.
        """
        directory = _secrets_dir()
        files = [] if directory is None else sorted(path.name for path in directory.iterdir())
        fields = type(self).model_fields
        problems = [*unknown_names([*os.environ, *files], fields), *nameless_files(files, fields)]
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems += dict.fromkeys(_told(error))
        if problems:
            raise ConfigurationError("\n".join(problems))

    @property
    def trusted_keys_file(self) -> Path:
        """Where ``expunge init`` writes what verifiers should trust."""
        return self.data_dir / "keys" / "trusted-keys.json"

    @property
    def admin_key_file(self) -> Path:
        """The file of the first API key, written by ``expunge init``."""
        return self.data_dir / "keys" / "admin-api-key"

    @field_validator("*", mode="before")
    @classmethod
    def _decoded(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str) or info.field_name is None:
            return value
        return decoded(value, cls.model_fields[info.field_name].annotation)

    @field_validator("*")
    @classmethod
    def _within_ten_years(cls, value: object, info: ValidationInfo) -> object:
        """Refuse seconds that no date can be so far away."""
        is_seconds = str(info.field_name).endswith("_s")
        if is_seconds and isinstance(value, float) and not value <= TEN_YEARS_S:
            raise ValueError(f"must be at most {TEN_YEARS_S} (ten years)")
        return value

    @field_validator(*_PARTS)
    @classmethod
    def _has_its_part(cls, value: object, info: ValidationInfo) -> object:
        name = str(info.field_name)
        part = _PARTS[name]
        is_asked_for = value != cls.model_fields[name].get_default(call_default_factory=True)
        if is_asked_for and find_spec(part) is None:
            raise ValueError(f"needs {part}, which is not a part of this installation")
        return value

    @field_validator("traces")
    @classmethod
    def _can_trace(cls, value: bool) -> bool:  # noqa: FBT001
        if value:
            extras.require("opentelemetry.sdk", extra=extras.OTEL)
        return value

    @model_validator(mode="after")
    def _whole_oidc(self) -> Self:
        if (self.oidc_issuer is None) != (self.oidc_audience is None):
            raise ValueError(
                "EXPUNGE_OIDC_ISSUER: belongs together with EXPUNGE_OIDC_AUDIENCE: "
                "set both or neither"
            )
        return self

    @model_validator(mode="after")
    def _whole_vault(self) -> Self:
        if self.vault_key is None:
            return self
        if self.kms_key is not None:
            raise ValueError("EXPUNGE_VAULT_KEY: EXPUNGE_KMS_KEY is set too: choose one")
        if self.vault_url is None:
            raise ValueError("EXPUNGE_VAULT_KEY: needs EXPUNGE_VAULT_URL")
        by_role = self.vault_role_id is not None and self.vault_secret_id is not None
        if by_role == (self.vault_token_file is not None):
            raise ValueError(
                "EXPUNGE_VAULT_KEY: needs EXPUNGE_VAULT_TOKEN_FILE, or EXPUNGE_VAULT_ROLE_ID and "
                "EXPUNGE_VAULT_SECRET_ID"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is given
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - likewise
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read secrets from the directory that the environment names now."""
        directory = _secrets_dir()
        if directory is None:
            return init_settings, env_settings
        return init_settings, env_settings, SecretsSettingsSource(settings_cls, directory)


def _secrets_dir() -> Path | None:
    named = os.environ.get(SECRETS_DIR_VARIABLE)
    directory = Path(named or SECRETS_DIR)
    if directory.is_dir():
        return directory
    if named:
        raise ConfigurationError(f"{SECRETS_DIR_VARIABLE}: no directory {named} exists")
    return None


def _told(error: ValidationError) -> Iterator[str]:
    for fault in error.errors(include_input=False, include_url=False):
        told = fault["msg"].removeprefix("Value error, ")
        # A rule for several names its variable itself.
        yield f"{variable_of(str(fault['loc'][0]))}: {told}" if fault["loc"] else told

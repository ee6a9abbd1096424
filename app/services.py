"""Builds all services from only the settings."""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr
from redis import Redis
from sqlalchemy.orm import Session

from app.callbacks.deliverer import Deliverer, Terms
from app.callbacks.events import Callbacks
from app.callbacks.keys import CallbackKeys
from app.callbacks.posting import Poster
from app.callbacks.urls import UrlRules
from app.certificates.cosignature import WitnessKey
from app.certificates.model_signing import ModelSigner
from app.certificates.processor_signing import ProcessorSigner
from app.certificates.signing import StatementSigner
from app.database import Database
from app.datasets.pseudonyms import Pseudonyms
from app.datasets.reading import readers_of
from app.datasets.service import Records
from app.embedded import EmbeddedServers
from app.ledger import (
    actor,
    checkpoints,
    deadlines,
    idempotency,
    log,
    settlement,
    signing_keys,
)
from app.ledger.accepting import Acceptance
from app.ledger.completion import Completion
from app.ledger.idempotency import IdempotencyKeys
from app.ledger.requests import ForgetRequests
from app.ledger.subject_requests import SubjectRequests
from app.logs import describe
from app.planning.planners import Planners
from app.registry import repository as registry
from app.settings import Settings
from app.storage.blobs import Blobs
from app.storage.file_keys import FileKeyStore
from app.storage.objects import LocalObjectStore, ObjectStore
from app.storage.s3 import S3ObjectStore
from app.witnesses.asking import Asker

_log = logging.getLogger("expunge.service")


@dataclass(frozen=True)
class Services:
    """The parts that the API and the workers share."""

    settings: Settings
    database: Database
    blobs: Blobs
    signer: StatementSigner
    records: Records
    callbacks: Callbacks
    acceptance: Acceptance
    forget_requests: ForgetRequests
    subject_requests: SubjectRequests
    idempotency_keys: IdempotencyKeys

    @cached_property
    def planners(self) -> Planners:
        """Makes plans and quotes for callers, in processes that start when they are needed."""
        settings = self.settings
        return Planners(processes=settings.plan_processes, time_limit_s=settings.plan_timeout_s)

    @cached_property
    def model_signer(self) -> ModelSigner:
        """Signs weight files. Read when first used: only the API needs this key.

        Raises:
            ConfigurationError: the key is missing; run ``expunge init``.
        """
        return ModelSigner.from_file(model_signing_key_file(self.settings))

    @cached_property
    def pseudonyms(self) -> Pseudonyms:
        """Names callers and addresses without revealing them.

        Raises:
            ConfigurationError: the key is missing; run ``expunge init``.
        """
        return Pseudonyms.from_file(pseudonym_key_file(self.settings))

    @cached_property
    def unknown_objects(self) -> int:
        """How many stored objects the ledger did not know when this was first called.

        If there are any, it was restored from a backup and not reconciled; for that the service
        must be stopped.

        Raises:
            KeyStoreError: the keys cannot be listed.
        """
        with self.database.transaction() as session:
            return len(self.blobs.strays(session))

    @cached_property
    def probe(self) -> Redis:
        """A client of Redis for pages, metrics and health checks: it gives up after two seconds."""
        timeout_s = 2.0
        return Redis.from_url(
            redis_url(self.settings), socket_timeout=timeout_s, socket_connect_timeout=timeout_s
        )

    @cached_property
    def processor_signer(self) -> ProcessorSigner:
        """Signs OpenDSR messages. Read when first used.

        Raises:
            ConfigurationError: its key or certificate is missing; run ``expunge init``.
        """
        return ProcessorSigner.from_files(
            opendsr_key_file(self.settings),
            opendsr_certificate_file(self.settings),
            domain=opendsr_domain(self.settings),
        )

    def deliverer(self) -> Deliverer:
        """Return what delivers callbacks."""
        settings = self.settings
        poster = Poster(
            timeout_s=settings.callback_timeout_s,
            allow_private=settings.callback_allow_private,
            ca_file=settings.callback_ca_file,
        )
        terms = Terms(
            base_url=public_url(settings),
            poll_interval_s=settings.poll_interval_s,
            delivered_retention_s=settings.callback_retention_s,
        )
        return Deliverer(
            self.database, self.callbacks.keys, poster, lambda: self.processor_signer, terms
        )

    def askers(self) -> list[Asker]:
        """Return what asks the log's witnesses, one for each.

        Raises:
            NoteError: a witness's verifier key is not valid.
        """
        return [
            Asker(
                self.database,
                str(url),
                WitnessKey.from_text(key),
                poll_interval_s=self.settings.poll_interval_s,
            )
            for url, key in self.settings.witnesses.items()
        ]

    def clean_up(self) -> None:
        """Erase what may be erased and shred what was given up; safe to repeat at any time."""
        with actor.acting_as(actor.SERVICE):
            self._clean_up()

    def complete_at_once(self, named: Callable[[Session], Collection[str]]) -> None:
        """Complete requests that were just certified; what fails is left to the dispatcher."""
        try:
            with actor.acting_as(actor.SERVICE):
                with self.database.transaction() as session:
                    request_ids = named(session)
                self._completion.complete(request_ids)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            _log.warning("completing is left to the dispatcher: %s", describe(error))

    @property
    def _completion(self) -> Completion:
        return Completion(self.database, self.blobs, self.forget_requests)

    def _clean_up(self) -> None:
        with ExitStack() as steps:  # from the last to the first, each even if another fails
            steps.callback(self._note_shredded)
            steps.callback(self.blobs.sweep)
            steps.callback(self._completion.complete)

    def _note_shredded(self) -> None:
        with self.database.transaction() as session:
            settlement.note_shredded(session)

    def note_deadlines(self) -> None:
        """Warn of requests whose deadline is near or has passed, each once."""
        warning_s = self.settings.deadline_warning_s
        with self.database.transaction() as session:
            warnings = deadlines.note_deadlines(session, warning_s=warning_s)
        for warning in warnings:
            what = "is overdue since" if warning.kind == deadlines.OVERDUE else "is due at"
            _log.warning("%s %s %s", warning.request_id, what, warning.due_at.isoformat())

    def forget_answers(self) -> None:
        """Delete the answers to repeatable calls whose time is over."""
        with self.database.transaction() as session:
            idempotency.remove_expired(session)

    def rotate_keys(self) -> None:
        """Destroy the key that wraps the stored objects' keys when its period is over."""
        surviving = self.blobs.rotate_keys(self.settings.key_period_s)
        if surviving is not None:
            with self.database.transaction() as session:
                log.append(session, "storage_keys.rotated", data_keys=surviving)

    def checkpoint_log(self) -> None:
        """Sign the log if it has grown since it was last signed, and that was a while ago."""
        interval_s = self.settings.checkpoint_interval_s
        with self.database.transaction() as session:
            if checkpoints.is_due(session, interval_s=interval_s):
                signing_keys.require_in_use(session, self.signer)
                log.checkpoint_at_commit(session, self.signer)


def database_url(settings: Settings) -> str:
    """Return the configured database, or the embedded one's URL."""
    return settings.database_url or EmbeddedServers(settings.data_dir).database_url


def migration_url(settings: Settings) -> str:
    """Return the URL of the role that owns the tables; with one URL of your own, that one."""
    if settings.database_url is None:
        return EmbeddedServers(settings.data_dir).migration_url
    return settings.migration_url or settings.database_url


@contextmanager
def embedded_postgres(settings: Settings) -> Iterator[None]:
    """Ensure that PostgreSQL runs: the embedded one is started, and stopped again at the end."""
    servers = EmbeddedServers(settings.data_dir)
    if settings.database_url is not None or servers.postgres_running():
        yield
        return
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


def trusted_keys_file(settings: Settings) -> Path:
    """Where ``expunge init`` writes what verifiers should trust."""
    return settings.data_dir / "keys" / "trusted-keys.json"


def write_trusted_keys(settings: Settings, database: Database) -> Path:
    """Write what verifiers should trust, beside the signing key; return the file's path."""
    signer = StatementSigner.from_file(signing_key_file(settings))
    with database.transaction() as session:
        if signing_keys.may_sign(session, signer):  # else a rotation has to be finished
            signing_keys.require_in_use(session, signer)
    path = trusted_keys_file(settings)
    with database.transaction() as session:
        signing_keys.trusted(session).write(path)
    return path


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
    return S3ObjectStore(
        settings.s3_bucket,
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        prefix=settings.s3_prefix,
        access_key=_revealed(settings.s3_access_key),
        secret_key=_revealed(settings.s3_secret_key),
    )


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def create_keys(settings: Settings) -> None:
    """Create the missing keys of the services."""
    StatementSigner.from_file(signing_key_file(settings), create=True)
    ModelSigner.from_file(model_signing_key_file(settings), create=True)
    Pseudonyms.from_file(pseudonym_key_file(settings), create=True)
    CallbackKeys.from_file(callback_key_file(settings), create=True)
    FileKeyStore(key_store_dir(settings), create=True)


def open_blobs(settings: Settings, database: Database) -> Blobs:
    """Give access to the stored objects.

    Raises:
        ConfigurationError: the key store is missing; run ``expunge init``.
    """
    return Blobs(database, object_store(settings), FileKeyStore(key_store_dir(settings)))


def open_services(settings: Settings) -> Services:
    """Put the services together.

    Raises:
        ConfigurationError: a key is missing; run ``expunge init``.
    """
    database = Database(database_url(settings))
    blobs = open_blobs(settings, database)
    pseudonyms = Pseudonyms.from_file(pseudonym_key_file(settings))
    signer = StatementSigner.from_file(signing_key_file(settings))
    records = Records(
        database,
        blobs,
        pseudonyms,
        readers=readers_of(settings.max_upload_bytes),
        journal=log.append,
        learned_through=registry.learned_through,
    )
    callbacks = Callbacks(
        CallbackKeys.from_file(callback_key_file(settings)),
        UrlRules(
            allow_http=settings.callback_allow_http,
            allow_private=settings.callback_allow_private,
        ),
    )
    acceptance = Acceptance(pseudonyms=pseudonyms, signer=signer, callbacks=callbacks)
    forget_requests = ForgetRequests(pseudonyms=pseudonyms, records=records)
    return Services(
        settings=settings,
        database=database,
        blobs=blobs,
        signer=signer,
        records=records,
        callbacks=callbacks,
        acceptance=acceptance,
        forget_requests=forget_requests,
        subject_requests=SubjectRequests(
            pseudonyms=pseudonyms,
            callbacks=callbacks,
            acceptance=acceptance,
            forget_requests=forget_requests,
        ),
        idempotency_keys=IdempotencyKeys(pseudonyms),
    )

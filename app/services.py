"""Builds all services from only the settings."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, Unpack

from redis import Redis
from sqlalchemy.orm import Session

from app.access import idempotency
from app.access.idempotency import IdempotencyKeys
from app.access.pseudonyms import Pseudonyms
from app.delivery.callbacks.deliverer import Deliverer, Terms
from app.delivery.callbacks.events import Callbacks
from app.delivery.callbacks.keys import CallbackKeys
from app.delivery.callbacks.posting import Poster
from app.delivery.publishing.publisher import Publisher
from app.delivery.publishing.publisher import Terms as PublishingTerms
from app.delivery.publishing.target import targets_of
from app.domain.errors import ConfigurationError, NoteError
from app.evidence import log
from app.evidence.certificates.model_signing import ModelSigner
from app.evidence.certificates.note import WitnessKey
from app.evidence.certificates.processor_signing import ProcessorSigner
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import actor, checkpoints, signing_keys
from app.ledger import deadlines, evidence, leaving_out, training
from app.ledger.accepting import Acceptance
from app.ledger.certificates.present_release import PresentReleases
from app.ledger.completion import Completion
from app.ledger.leaving_out import begin_new, leave_out_at_once
from app.ledger.models.releases import Releases, answered_by, served
from app.ledger.requests import ForgetRequests
from app.ledger.subjects.requests import SubjectRequests
from app.planning.planner import Planners
from app.registry.datasets.reading import readers_of
from app.registry.datasets.service import Records
from app.runtime import locations, spans
from app.runtime.database import Database
from app.runtime.database.wakeups import Signal, wake_now
from app.runtime.logs import describe
from app.runtime.settings import Settings
from app.storage import stores
from app.storage.blobs import Blobs

KEY_PERIOD_S = 86400.0
"""How long the key that wraps the keys of stored objects lives."""
CHECKPOINT_INTERVAL_S = 60.0
"""How old a signed checkpoint of a log that has grown may get."""
_log = logging.getLogger("expunge.service")


class Background(Protocol):
    """What a process does besides its main work, in a thread of its own."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""


@dataclass(frozen=True)
class Services:
    """The parts that the API and the workers share.

    ``witnesses`` are those whose cosignatures of the log are shown.
    """

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
    witnesses: Sequence[WitnessKey]

    @cached_property
    def planners(self) -> Planners:
        """Makes plans and quotes for callers, in processes that start when they are needed."""
        return Planners()

    @cached_property
    def model_signer(self) -> ModelSigner:
        """Signs weight files: only the API needs this key. ``ConfigurationError`` without it."""
        return ModelSigner.from_file(locations.model_signing_key_file(self.settings))

    @cached_property
    def pseudonyms(self) -> Pseudonyms:
        """Names callers and addresses by keyed hashes; ``ConfigurationError`` without a key."""
        return Pseudonyms.from_file(locations.pseudonym_key_file(self.settings))

    @cached_property
    def unknown_objects(self) -> int:
        """How many stored objects the ledger did not know when this was first called.

        If there are any, it was restored from a backup and not reconciled; for that the service
        must be stopped.

        Raises:
            KeyStoreError: the keys cannot be listed.
        """
        with self.database.transaction() as session:
            return len(self.blobs.orphans(session))

    @cached_property
    def probe(self) -> Redis:
        """A client of Redis for pages, metrics and health checks: it gives up after two seconds."""
        timeout_s = 2.0
        return Redis.from_url(
            locations.redis_url(self.settings),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
        )

    @cached_property
    def processor_signer(self) -> ProcessorSigner:
        """Signs OpenDSR messages; ``ConfigurationError`` without its key or certificate."""
        return ProcessorSigner.from_files(
            locations.opendsr_key_file(self.settings),
            locations.opendsr_certificate_file(self.settings),
            domain=locations.opendsr_domain(self.settings),
        )

    def close(self) -> None:
        """Close what a process of the service has open at its end."""
        self.database.dispose()
        spans.close()

    def deliverer(self) -> Deliverer:
        """Return what delivers callbacks."""
        settings = self.settings
        poster = Poster(
            allow_private=settings.callback_allow_private,
            ca_file=settings.ca_file,
        )
        terms = Terms(
            base_url=locations.public_url(settings),
            delivered_retention_s=settings.callback_retention_s,
        )
        return Deliverer(
            self.database, self.callbacks.keys, poster, lambda: self.processor_signer, terms
        )

    def publisher(self) -> Publisher:
        """Return what publishes served versions to their targets.

        Raises:
            ConfigurationError: a file of certificates cannot be read.
        """
        releases = Releases(self.blobs, self.signer, self.witnesses)
        targets = targets_of(self.settings.publishers)
        return Publisher(
            self.database, targets, releases.of, served, answered_by, PublishingTerms()
        )

    def cosignature_collectors(self) -> Sequence[Background]:
        """Return what asks the log's witnesses, one for each."""
        if not self.witnesses:
            return ()
        from app.evidence.witnesses import CosignatureCollector  # noqa: PLC0415 - optional

        return [
            CosignatureCollector(self.database, str(url), key)
            for url, key in zip(self.settings.witnesses, self.witnesses, strict=True)
        ]

    def clean_up(self) -> None:
        """Erase what may be erased and shred what was given up; safe to repeat at any time."""
        with actor.acting_as(actor.SERVICE):
            self._completion.clean_up()

    def complete_at_once(self, named: Callable[[Session], Collection[str]]) -> None:
        """Complete requests that were just certified; what fails is left to the dispatcher."""
        try:
            with actor.acting_as(actor.SERVICE):
                with self.database.transaction() as session:
                    request_ids = named(session)
                self._completion.complete(request_ids)
                self._wake()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            _log.warning("completing is left to the dispatcher: %s", describe(error))

    def begin_leaving_out(
        self, session: Session, model_ids: Collection[str]
    ) -> leaving_out.Owing | None:
        """Begin it for small files, in a transaction that holds the locks of the models.

        None if that failed: it was rolled back.
        """
        lease_s, most_bytes = self.settings.lease_s, leaving_out.AT_ONCE_BYTES
        begin = partial(begin_new, session, lease_s=lease_s, most_bytes=most_bytes)
        try:
            with actor.acting_as(actor.SERVICE):
                begun = {each: begin(each) for each in sorted(model_ids)}
                session.flush()
        except Exception as error:  # noqa: BLE001 - requests are accepted, whatever it is
            _log.warning("leaving members out begins later: %s", describe(error))
            session.rollback()
            return None
        return begun

    def leave_out_at_once(
        self, owing: leaving_out.Owing, **terms: Unpack[leaving_out.Terms]
    ) -> bool:
        """Meet what ensembles owe without a worker, where none is needed; return whether any did.

        What fails is left to a worker.
        """
        try:
            with actor.acting_as(actor.SERVICE):
                places = (self.database, self.blobs, self.signer)
                one = partial(leave_out_at_once, *places, lease_s=self.settings.lease_s, **terms)
                met = [one(each, begun=owing[each]) for each in sorted(owing)]
                if any(met):
                    self._wake()
        except Exception as error:  # noqa: BLE001 - whatever it is, a worker tries again
            _log.warning("leaving members out is left to a worker: %s", describe(error))
            return False
        return any(met)

    def _wake(self) -> None:
        """Have the dispatcher erase and complete what can be now: it may wait for what ended."""
        with self.database.at_once() as connection:
            wake_now(connection, Signal.ERASABLE)

    @property
    def _completion(self) -> Completion:
        return Completion(self.database, self.blobs, self.forget_requests)

    def note_deadlines(self) -> None:
        """Warn of requests whose deadline is near or has passed, each once."""
        with self.database.transaction() as session:
            warnings = deadlines.note_deadlines(session)
        for warning in warnings:
            what = "is overdue since" if warning.kind == deadlines.OVERDUE else "is due at"
            _log.warning("%s %s %s", warning.request_id, what, warning.due_at.isoformat())

    def destroy_evidence(self) -> None:
        """Destroy what tells whom requests named that ended long ago; some at each call."""
        with actor.acting_as(actor.SERVICE):
            evidence.destroy(self.database, retention=self.settings.evidence_retention)

    def forget_answers(self) -> None:
        """Delete the answers to repeatable calls whose time is over."""
        with self.database.transaction() as session:
            idempotency.remove_expired(session)

    def rotate_keys(self) -> None:
        """Destroy the key that wraps the stored objects' keys when its period is over."""
        surviving = self.blobs.rotate_keys(KEY_PERIOD_S)
        if surviving is not None:
            with self.database.transaction() as session:
                log.append(session, "storage_keys.rotated", data_keys=surviving)

    def checkpoint_log(self) -> None:
        """Sign the log if it has grown since it was last signed, and that was a while ago."""
        with self.database.transaction() as session:
            if checkpoints.is_due(session, interval_s=CHECKPOINT_INTERVAL_S):
                signing_keys.require_in_use(session, self.signer)
                log.checkpoint_at_commit(session, self.signer)


def witness_keys(settings: Settings) -> list[WitnessKey]:
    """Return the keys of the log's witnesses, in the order of the settings.

    Raises:
        ConfigurationError: one is not a witness's verifier key.
    """
    try:
        return [WitnessKey.from_text(key) for key in settings.witnesses.values()]
    except NoteError as error:
        raise ConfigurationError(f"EXPUNGE_WITNESSES: {error}") from error


def create_keys(settings: Settings) -> None:
    """Create the missing keys of the services."""
    StatementSigner.from_file(locations.signing_key_file(settings), create=True)
    ModelSigner.from_file(locations.model_signing_key_file(settings), create=True)
    Pseudonyms.from_file(locations.pseudonym_key_file(settings), create=True)
    CallbackKeys.from_file(locations.callback_key_file(settings), create=True)
    stores.key_store(settings, create=True)


def open_blobs(settings: Settings, database: Database) -> Blobs:
    """Give access to the stored objects; ``ConfigurationError`` without a key store."""
    return Blobs(database, stores.object_store(settings), stores.key_store(settings))


def _sender_of_spans() -> spans.Sender:
    from app.runtime import tracing  # noqa: PLC0415 - optional; loaded with the first span

    return tracing.Sender()


def open_services(settings: Settings, *, process: str | None = None) -> Services:
    """Put the services together.

    ``process`` is what a process of the service is called at the database; a command is none.

    Raises:
        ConfigurationError: a key is missing; run ``expunge init``. Or a witness's is wrong.
    """
    witnesses = witness_keys(settings)  # before anything is opened
    if settings.traces and process is not None:
        spans.send_by(_sender_of_spans)
    database = Database(locations.database_url(settings), process=process)
    blobs = open_blobs(settings, database)
    pseudonyms = Pseudonyms.from_file(locations.pseudonym_key_file(settings))
    signer = StatementSigner.from_file(locations.signing_key_file(settings))
    records = Records(
        database,
        blobs,
        pseudonyms,
        readers=readers_of(settings.max_upload_bytes),
        learned_through=training.learned_through,
    )
    callbacks = Callbacks(
        CallbackKeys.from_file(locations.callback_key_file(settings)),
        allow_private=settings.callback_allow_private,
    )
    acceptance = Acceptance(
        pseudonyms=pseudonyms,
        signer=signer,
        callbacks=callbacks,
        present_releases=PresentReleases(blobs),
    )
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
        witnesses=witnesses,
    )

"""Readiness: checks each dependency of the service separately.

Failures that keep the API from accepting requests make the service unavailable. Without Redis,
workers or a dispatcher, or with little room on its disk, it is degraded: requests are still
accepted and nothing is lost.
"""

import asyncio
import math
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from app.domain.errors import ConfigurationError, KeyServiceError, KeyStoreError
from app.evidence.certificates.model_signing import ModelSigner
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import signing_keys
from app.operations import schema
from app.operations.monitoring.queue_state import queue_state
from app.runtime.database.group_commit import GroupCommit
from app.runtime.locations import model_signing_key_file, signing_key_file
from app.services import Services

OK = "ok"
UNKNOWN = "unknown"
NEWER = "newer than this program"
RESTORED = "restored from a backup: stop the service and run 'expunge reconcile'"
LOW_DISK_BYTES: Final = 256 * 2**20
_REMEMBERED_S: Final = 1.0
_VITAL = ("database", "migrations", "ledger", "signing_key", "key_store")


@dataclass
class Readiness:
    """One word or phrase per dependency; ``unknown`` if it cannot be checked.

    Attributes:
        database: Whether PostgreSQL answers.
        migrations: Whether all migrations of this program are applied.
        ledger: Whether it knows everything that is stored; otherwise it is a restored backup.
        signing_key: Whether the private keys can be read and match the key in use.
        key_store: Whether keys of stored objects can be read and created.
        disk: Whether the data directory's disk has 256 MiB left.
        redis: Whether Redis answers.
        workers: Whether at least one is alive, and none has stopped to report.
        dispatcher: Whether at least one is alive.
    """

    database: str = OK
    migrations: str = UNKNOWN
    ledger: str = UNKNOWN
    signing_key: str = UNKNOWN
    key_store: str = OK
    disk: str = OK
    redis: str = OK
    workers: str = UNKNOWN
    dispatcher: str = UNKNOWN

    @property
    def status(self) -> str:
        """``ok``, ``degraded`` or ``unavailable``."""
        parts = asdict(self)
        fine = {name for name, word in parts.items() if word in (OK, NEWER)}
        if not fine.issuperset(_VITAL):
            return "unavailable"
        return OK if all(word == OK for word in parts.values()) else "degraded"


class ReadinessChecks:
    """Checks a service's dependencies at most once a second, however many callers ask."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._checks = GroupCommit(self._answer_all)
        self._found = Readiness()
        self._until = -math.inf

    async def present(self) -> Readiness:
        """Return what was found within the last second, or what is found now."""
        if time.monotonic() < self._until:
            return self._found
        return await asyncio.wrap_future(self._checks.start(None))

    def _answer_all(self, calls: Sequence[None]) -> list[Readiness | Exception]:
        if time.monotonic() >= self._until:
            self._found = readiness(self._services)
            self._until = time.monotonic() + _REMEMBERED_S
        return [self._found] * len(calls)


def readiness(services: Services) -> Readiness:
    """Check every dependency now."""
    found = Readiness()
    _look_at_database(services, found)
    _look_at_keys(services, found)
    _look_at_queue(services, found)
    _look_at_disk(services, found)
    return found


def _look_at_database(services: Services, found: Readiness) -> None:
    try:
        with services.database.transaction() as session:
            revision = schema.revision_of(session)
            if schema.is_behind(revision):
                found.migrations = "missing: run 'expunge init'"
                return
            found.migrations = OK if revision == schema.head_revision() else NEWER
            in_use = signing_keys.may_sign(session, services.signer)
        found.signing_key = OK if in_use else "not the one in use: start the service again"
        with suppress(KeyStoreError, OSError):  # reported as the key store's state
            found.ledger = RESTORED if services.unknown_objects else OK
    except (SQLAlchemyError, OSError):
        found.database = "unreachable"


def _look_at_keys(services: Services, found: Readiness) -> None:
    settings = services.settings
    try:
        StatementSigner.from_file(signing_key_file(settings))
        ModelSigner.from_file(model_signing_key_file(settings))
    except (ConfigurationError, OSError):
        found.signing_key = "unreadable"
    try:
        services.blobs.require_keys()
    except (KeyServiceError, KeyStoreError):
        found.key_store = "unusable"


def _look_at_queue(services: Services, found: Readiness) -> None:
    try:
        state = queue_state(services.probe)
    except RedisError:
        found.redis = "unreachable"
        return
    silent = f"{state.silent} did not report for a minute" if state.silent else OK
    found.workers = silent if state.workers else "none is alive"
    found.dispatcher = OK if state.dispatchers else "none is alive"


def _look_at_disk(services: Services, found: Readiness) -> None:
    try:
        free = shutil.disk_usage(services.settings.data_dir).free
    except OSError:
        found.disk = "unreadable"
        return
    if free < LOW_DISK_BYTES:
        found.disk = f"nearly full: {free >> 20} MiB are left"

"""Retries work on Postgres, the object store and the keys' service during outages.

Otherwise an outage of a second would discard hours of computation and use up an attempt. The
lease's heartbeat continues meanwhile in its own thread.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from app.domain.errors import KeyServiceError, ObjectStoreError
from app.runtime.logs import describe

Result = TypeVar("Result")

_log = logging.getLogger("expunge.worker")
_PATIENCE_S = 600.0
_DELAY_S = 0.5


def outlast_outages(check: Callable[[], None], work: Callable[[], Result]) -> Result:
    """Do ``work`` and return its result; during an outage of a store, retry for ten minutes.

    It must be idempotent: a transaction may run again after it was committed. Exceptions of
    ``check``, which is called before each retry, end the waiting.

    Raises:
        DBAPIError: Postgres stayed unavailable, or rejected the work.
        ObjectStoreError: the object store did.
        KeyServiceError: the service that wraps the keys did, or refused.
    """
    failing_since: float | None = None
    while True:
        try:
            return work()
        except (DBAPIError, ObjectStoreError, KeyServiceError) as error:
            if not _is_outage(error):
                raise
            now = time.monotonic()
            if failing_since is None:
                failing_since = now
                _log.warning("waiting for a store: %s", describe(error))
            elif now - failing_since > _PATIENCE_S:
                raise
        time.sleep(_DELAY_S)
        check()


def _is_outage(error: DBAPIError | ObjectStoreError | KeyServiceError) -> bool:
    """Return whether the store is at fault; a connection ended by Postgres counts as an outage."""
    return (
        isinstance(error, ObjectStoreError | KeyServiceError | OperationalError | InterfaceError)
        or error.connection_invalidated
    )

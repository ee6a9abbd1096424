"""Work on Postgres and the object store that outlasts an outage of either.

Without it, an outage of a second would throw away what a run has computed in hours, and use up one
of its attempts. The lease's heartbeat goes on meanwhile in a thread of its own.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from app.domain.errors import ObjectStoreError
from app.logs import describe

Result = TypeVar("Result")

_log = logging.getLogger("expunge.worker")
_PATIENCE_S = 600.0
_DELAY_S = 0.5


def outlast_outages(check: Callable[[], None], work: Callable[[], Result]) -> Result:
    """Do ``work`` and return its result; while a store is away, try again for ten minutes.

    Args:
        check: called before each new try; what it raises ends the waiting.
        work: reads, writes and transactions that do no harm if they are repeated, a transaction
            also after a commit that went through.

    Raises:
        DBAPIError: Postgres stayed away, or refused the work.
        ObjectStoreError: the object store did.
    """
    failing_since: float | None = None
    while True:
        try:
            return work()
        except (DBAPIError, ObjectStoreError) as error:
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


def _is_outage(error: DBAPIError | ObjectStoreError) -> bool:
    """Say whether the store is at fault; a connection that Postgres has ended is an outage too."""
    return (
        isinstance(error, ObjectStoreError | OperationalError | InterfaceError)
        or error.connection_invalidated
    )

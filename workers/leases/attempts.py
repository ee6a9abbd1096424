"""One attempt at leased work: carried out, and given up with its reason if it fails."""

import logging
from collections.abc import Callable

from sqlalchemy.orm import Session

from app.domain import errors
from app.runtime.database import Database
from app.runtime.logs import describe
from workers.leases.holding import Holding

_log = logging.getLogger("expunge.worker")
_PERMANENT = (
    errors.ConflictError,
    errors.ImportFailedError,
    errors.InvalidInputError,
    errors.NotFoundError,
    errors.ParameterError,
    errors.PlanError,
    errors.RunFailedError,
    errors.TargetNotMetError,
    errors.VerificationError,
    errors.WriteRefusedError,
)


def attempted(
    database: Database,
    lease: Holding,
    *,
    work: Callable[[], None],
    give_up: Callable[[Session, Exception], None],
    told: Callable[[Exception], str] = describe,
) -> bool:
    """Return whether leased work was carried out; raises nothing.

    Args:
        database: where failures are recorded, never in Redis.
        lease: kept while the work goes on.
        work: carries it out.
        give_up: records why it failed, if this worker still holds it.
        told: what the log says of a failure.
    """
    lease.give_up = lambda error: _give_up(database, lease.what, give_up, error)
    try:
        with lease:
            work()
    except errors.LeaseLostError as error:
        _log.warning("%s: the lease was lost: %s", lease.what, describe(error))
    except Exception as error:  # noqa: BLE001 - reported to the ledger, never to Redis
        _log.error("%s: %s", lease.what, told(error))
        _give_up(database, lease.what, give_up, error)
    else:
        return True
    return False


def _give_up(
    database: Database,
    what: str,
    give_up: Callable[[Session, Exception], None],
    error: Exception,
) -> None:
    try:
        with database.transaction() as session:
            give_up(session, error)
    except errors.LeaseLostError:
        _log.warning("%s: the lease was lost; stopping", what)
    except Exception as second:  # noqa: BLE001 - requeued when the lease expires
        _log.error("%s: could not be given up: %s", what, describe(second))


def is_permanent(error: BaseException) -> bool:
    """Return whether the same run would fail again in the same way."""
    return isinstance(error, _PERMANENT)

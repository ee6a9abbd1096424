"""Thin entry points for RQ: an id in, nothing out, and no exception that Redis could keep."""

import logging

from app.domain.errors import LeaseLostError
from app.ledger import runs
from app.services import Services, open_services
from app.settings import Settings
from workers.failures import describe, is_permanent
from workers.lease import Lease
from workers.run import execute

_log = logging.getLogger("expunge.worker")


def execute_run(run_id: str) -> None:
    """Carry out one run, if it is still waiting for a worker."""
    services = open_services(Settings())
    lease = Lease.take(services.database, run_id, lease_s=services.settings.lease_s)
    if lease is None:
        return
    _log.info("run %s: %s", run_id, lease.kind)
    try:
        with lease:
            execute(services, lease)
    except LeaseLostError:
        _log.warning("run %s: the lease was lost; stopping", run_id)
    except Exception as error:  # noqa: BLE001 - reported to the ledger, never to Redis
        _give_up(services, lease, error)
    else:
        _log.info("run %s: published", run_id)
    finally:
        services.database.dispose()


def _give_up(services: Services, lease: Lease, error: Exception) -> None:
    reason = describe(error)
    _log.error("run %s: %s", lease.run_id, reason)
    try:
        with services.database.transaction() as session:
            row = runs.holder(session, lease.run_id, lease.fencing_token)
            runs.give_up_attempt(
                session,
                row,
                reason=reason,
                permanent=is_permanent(error),
                max_attempts=services.settings.max_attempts,
            )
    except Exception as second:  # noqa: BLE001 - the lease will expire, and the dispatcher sees to it
        _log.error("run %s: could not be given up: %s", lease.run_id, describe(second))

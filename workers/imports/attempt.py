"""One attempt at an import: taken, carried out, and given up with its reason if it fails."""

import logging

from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, ImportFailedError, RunInterruptedError
from app.imports import service
from app.logs import describe
from app.processes.stopping import StopSignal
from app.services import Services
from workers.imports.importing import carry_out
from workers.imports.lease import ImportLease
from workers.leases.attempts import attempted
from workers.leases.failures import is_permanent

_log = logging.getLogger("expunge.worker")


def attempt(services: Services, import_id: str, stop: StopSignal) -> None:
    """Carry out an import, if it waits for that.

    Why it fails is recorded with it, for its caller; the log names no file.
    """
    lease = ImportLease.take(
        services.database, import_id, lease_s=services.settings.lease_s, stop=stop
    )
    if lease is None:
        return
    _log.info("import %s", import_id)

    def give_up(session: Session, error: Exception) -> None:
        row = service.holder(session, lease.import_id, lease.fencing_token)
        if isinstance(error, RunInterruptedError):
            service.hand_back(session, row)
            return
        service.give_up_attempt(
            session,
            row,
            reason=describe(error),
            problems=error.problems if isinstance(error, ImportFailedError) else (),
            permanent=is_permanent(error) and not isinstance(error, ConflictError),
            max_attempts=services.settings.max_attempts,
        )

    if attempted(
        services.database,
        lease,
        work=lambda: carry_out(services, lease),
        give_up=give_up,
        told=lambda error: type(error).__name__,
    ):
        _log.info("import %s: completed", import_id)

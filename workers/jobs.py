"""Entry points for RQ: the only argument is an id; no result or exception reaches Redis."""

import logging
from collections.abc import Callable

from sqlalchemy.orm import Session

from app.domain.errors import RunInterruptedError, ScoreTooLowError
from app.domain.plan import Plan
from app.ledger import repository, runs
from app.runtime import logs
from app.runtime.logs import describe
from app.runtime.processes.stopping import StopSignal
from app.runtime.settings import Settings
from app.services import Services, open_services
from workers.data.imports.importing import attempt
from workers.leases.attempts import attempted, is_permanent
from workers.leases.lease import Lease
from workers.mechanisms.ensembles.helping import help_with
from workers.queue import note_current
from workers.run import execute
from workers.training.orders import is_divided

_log = logging.getLogger("expunge.worker")

stop = StopSignal()
"""Set when this process is asked to stop; its run goes back to the queue at the next step."""


def execute_run(run_id: str) -> None:
    """Execute the most urgent queued run; ``run_id`` only signals that one is waiting.

    Raises nothing. If taking a run fails, it is retried, because the dispatcher enqueues every
    waiting run again.
    """
    with logs.in_process(run=run_id):
        _with_services(
            f"run {run_id}: could not be taken", lambda services: _take(services, run_id)
        )


def train_members(run_id: str) -> None:
    """Help with an ensemble's run, if it goes on and a member waits. Raises nothing."""
    with logs.in_process(run=run_id):
        _with_services(f"run {run_id}: no help", lambda services: help_with(services, run_id, stop))


def carry_out_import(import_id: str) -> None:
    """Carry out an import, if it still waits for that. Raises nothing."""

    def take(services: Services) -> None:
        with logs.in_process(**{"import": import_id}):
            attempt(services, import_id, stop)

    _with_services(f"import {import_id}: could not be taken", take)


def _with_services(failing: str, work: Callable[[Services], None]) -> None:
    """Work with services that are closed afterwards; a failure is logged, never raised."""
    try:
        services = open_services(Settings(), process="worker")
        try:
            work(services)
        finally:
            services.close()
    except Exception as error:  # noqa: BLE001 - Redis would keep its message
        _log.error("%s: %s", failing, describe(error))


def _take(services: Services, run_id: str) -> None:
    lease = Lease.take(services.database, run_id, lease_s=services.settings.lease_s, stop=stop)
    if lease is not None:
        note_current(lease.run_id)
        with logs.in_process(run=lease.run_id):
            _execute(services, lease)


def _execute(services: Services, lease: Lease) -> None:
    _log.info("run %s: %s", lease.run_id, lease.kind)

    def give_up(session: Session, error: Exception) -> None:
        row = runs.holder(session, lease.run_id, lease.fencing_token)
        if isinstance(error, RunInterruptedError):
            runs.hand_back(session, row)
            return
        runs.give_up_attempt(
            session,
            row,
            reason=describe(error),
            permanent=is_permanent(error),
            max_attempts=services.settings.max_attempts,
            too_low=isinstance(error, ScoreTooLowError),
        )

    if attempted(
        services.database, lease, work=lambda: _carry_out(services, lease), give_up=give_up
    ):
        _log.info("run %s: published", lease.run_id)
        services.complete_at_once(
            lambda session: {
                owed.request_id for owed in repository.obligations_of_run(session, lease.run_id)
            }
        )


def _carry_out(services: Services, lease: Lease) -> None:
    devices = services.settings.devices
    if devices > 1 and is_divided(Plan.from_json(lease.plan)):
        from workers.distributed.execution import carry_out  # noqa: PLC0415 - an optional part

        carry_out(lease, devices)
    else:
        execute(services, lease)

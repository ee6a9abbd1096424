"""A member of a run that another worker than the run's own trains."""

from collections.abc import Iterator
from typing import Unpack

from sqlalchemy import Connection

from app.database import Database
from app.ledger import repository
from app.ledger.ensembles import trainings
from app.ledger.tables import MemberTrainingRow
from app.tracing.spans import Span, Step
from workers.leases import traces
from workers.leases.holding import Holding, Term


class MemberLease(Holding):
    """One attempt at one member, which is ``held``."""

    def __init__(self, database: Database, row: MemberTrainingRow, **term: Unpack[Term]) -> None:
        what = f"member {row.member} of run {row.run_id}"
        super().__init__(database, what, **term)
        self.held = trainings.HeldMember.of(row)

    @classmethod
    def take(cls, database: Database, run_id: str, **term: Unpack[Term]) -> "MemberLease | None":
        """Lease the next member of a run; None if none waits."""
        with database.transaction() as session:
            row = trainings.take(session, run_id, lease_s=term["lease_s"])
            return None if row is None else cls(database, row, **term)

    def _spans(self, error: str | None) -> Iterator[Span]:
        held = self.held
        with self._database.transaction() as session:
            run = repository.run(session, held.run_id)
            work = traces.attempt_at(session, run, held.run_token)
        key = (held.member, held.fencing_token)
        yield work.part(Step.MEMBER, *key, begun_ns=self._begun_ns, error=error)

    def _beat(self, connection: Connection) -> None:
        trainings.heartbeat(connection, self.held, lease_s=self._lease_s)

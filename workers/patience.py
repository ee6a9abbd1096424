"""Work on the database that outlasts a restart of Postgres.

Without it, an outage of a second would throw away what a run has computed in hours, and use up one
of its attempts.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

Result = TypeVar("Result")

_PATIENCE_S = 600.0
_DELAY_S = 0.5


def outlast_outages(check: Callable[[], None], work: Callable[[], Result]) -> Result:
    """Do ``work`` and return its result; while Postgres is away, try again for ten minutes.

    Args:
        check: called before each new try; what it raises ends the waiting.
        work: transactions that do no harm if they are repeated after a commit that went through.

    Raises:
        OperationalError, InterfaceError: Postgres stayed away.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return work()
        except (OperationalError, InterfaceError):
            if time.monotonic() > deadline:
                raise
        time.sleep(_DELAY_S)
        check()

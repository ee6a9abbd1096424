"""Plans and quotes for waiting callers: made in separate processes, each within limits."""

import threading
from typing import Any

from app.domain.plan import Plan
from app.domain.policy import Policy
from app.planning.planner import make_plan, quote_all
from app.planning.shape import ModelShape
from app.runtime.processes.process_pool import ProcessPool

PROCESSES = 2
TIME_LIMIT_S = 30.0
_WAITING = 8  # each holds a thread of the API
_MEMORY_BYTES = 1 << 30


class Planners:
    """Makes plans as ``planner`` does.

    Every method raises ``OverloadedError`` where too many calls wait, the caller has left or the
    service stops, and ``TooCostlyError`` where one takes more than it may.
    """

    def __init__(self) -> None:
        self._pool = ProcessPool(
            "planning",
            size=PROCESSES,
            waiting=_WAITING,
            time_limit_s=TIME_LIMIT_S,
            memory_bytes=_MEMORY_BYTES,
            preload=__name__,
        )

    def plan(
        self, *, policy: Policy, shape: ModelShape, left: threading.Event | None = None
    ) -> Plan:
        """Return the plan of one run; ``left`` is set when the caller does not wait any more."""
        return self._pool.call(left, make_plan, policy=policy, shape=shape)

    def quotes(
        self, *, policy: Policy, shape: ModelShape, left: threading.Event | None = None
    ) -> dict[str, Any]:
        """Return every mechanism's answer as plain JSON values; arguments are those of ``plan``."""
        return self._pool.call(left, _described, policy=policy, shape=shape)

    def close(self) -> None:
        """End all planning for good."""
        self._pool.close()


def _described(*, policy: Policy, shape: ModelShape) -> dict[str, Any]:
    return quote_all(policy=policy, shape=shape).describe(delta=policy.delta)

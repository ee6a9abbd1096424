"""Calls that arrive at the same time are carried out together, in one transaction.

A commit waits for the disk and holds the log's lock meanwhile, so many calls a second need shared
commits. The first call is carried out at once; calls that arrive meanwhile are carried out next,
together. One thread does it, so that waiting calls need none.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Condition, Lock
from typing import Generic, TypeVar

from app.runtime.database.engine import is_away

Call = TypeVar("Call")
Result = TypeVar("Result")


class GroupCommit(Generic[Call, Result]):
    """A function of many calls, for callers that have one call each.

    Args:
        carry_out: carries out calls in their order and in one transaction; returns, for each, its
            result or the exception that answers only this call. If it raises, nothing was done, and
            each of the calls is tried by itself; but if the database is away, all fail.
        most: how many calls it is given at once.
        linger_s: how long to wait, at most, after a group of several calls, for their callers to
            call again; never after a single call.
        leaders: lends the thread; by default one of its own.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[Call]], Sequence[Result | Exception]],
        *,
        most: int = 64,
        linger_s: float = 0.0,
        leaders: Executor | None = None,
    ) -> None:
        self._carry_out = carry_out
        self._most = most
        self._linger_s = linger_s
        self._waiting: list[tuple[Call, Future[Result]]] = []
        self._lock = Lock()
        self._enough = Condition(self._lock)
        self._expected = 0
        self._is_led = False
        self._leaders = leaders or ThreadPoolExecutor(1, thread_name_prefix="group-commit")

    @property
    def is_idle(self) -> bool:
        """Say whether no call waits or is being carried out."""
        with self._lock:
            return not self._is_led

    def start(self, call: Call) -> "Future[Result]":
        """Have a call carried out; one that is cancelled before its turn is skipped.

        Raises:
            RuntimeError: no thread can be started now; the call is not carried out.
        """
        future: Future[Result] = Future()
        with self._lock:
            if not self._is_led:  # what fails here must leave nothing behind that others wait for
                self._leaders.submit(self._lead)
            self._is_led = True
            self._waiting.append((call, future))
            if len(self._waiting) == self._expected:
                self._enough.notify()
        return future

    def _lead(self) -> None:
        while group := self._next_group():
            self._carry_out_group([c for c in group if c[1].set_running_or_notify_cancel()])
            if self._linger_s and len(group) > 1:
                answered = len(group)
                with self._enough:
                    self._expected = min(self._most, answered + len(self._waiting))
                    self._enough.wait_for(
                        lambda: len(self._waiting) >= self._expected, self._linger_s
                    )
                    self._expected = 0

    def _next_group(self) -> list[tuple[Call, "Future[Result]"]]:
        with self._lock:
            group, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            self._is_led = bool(group)
            return group

    def _carry_out_group(self, group: Sequence[tuple[Call, "Future[Result]"]]) -> None:
        if not group:
            return
        try:
            results = self._carry_out([call for call, _ in group])
        except Exception as error:  # noqa: BLE001 - it is raised to whom it concerns
            if len(group) == 1 or is_away(error):
                results = [error] * len(group)
            else:
                results = [self._alone(call) for call, _ in group]
        for (_, future), result in zip(group, results, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _alone(self, call: Call) -> Result | Exception:
        try:
            (result,) = self._carry_out([call])
        except Exception as error:  # noqa: BLE001 - it is raised to whom it concerns
            return error
        return result


class Lanes(Generic[Call, Result]):
    """A lane for each name: its calls are carried out together, and never wait for another lane.

    The function is given calls of one lane at a time, for ``at_once`` lanes at the same time.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[Call]], Sequence[Result | Exception]],
        *,
        linger_s: float = 0.0,
        at_once: int = 16,
    ) -> None:
        self._carry_out = carry_out
        self._linger_s = linger_s
        self._lanes: dict[str, GroupCommit[Call, Result]] = {}
        self._lock = Lock()
        self._leaders = ThreadPoolExecutor(at_once, thread_name_prefix="lane")

    def start(self, lane: str, call: Call) -> "Future[Result]":
        """Have a call carried out in its lane; see ``GroupCommit.start``."""
        with self._lock:
            if lane not in self._lanes:  # names are the callers': keep only those in use
                self._lanes = {n: busy for n, busy in self._lanes.items() if not busy.is_idle}
                self._lanes[lane] = GroupCommit(
                    self._carry_out, linger_s=self._linger_s, leaders=self._leaders
                )
            return self._lanes[lane].start(call)

"""Removes weights and records from exceptions.

Frames hold tensors in local variables, contexts hold more frames, and messages of third-party
exceptions can quote records ("Target 7 is out of bounds"). None of this may reach a log.
"""

from collections.abc import Callable
from typing import TypeVar

from app.domain.errors import ExpungeError
from workers.training.networks.operator_code import place_of, refusal_behind

Result = TypeVar("Result")


class _CallerError(Exception):
    """Carries an exception of the caller's own callback through frames that hold weights."""

    def __init__(self, original: BaseException) -> None:
        super().__init__()
        self.original = original


def scrubbed(what: str, work: Callable[[], Result], *, on_failure: Callable[[], None]) -> Result:
    """Do ``work`` and return its result; on failure call ``on_failure`` and raise, scrubbed.

    Expunge's own errors keep type and message, but lose frames and context; so does the refusal of
    a write, whatever was made of it. Exceptions of a callback wrapped by ``from_caller`` pass
    unchanged. Every other exception becomes a ``RuntimeError`` with ``what``, the exception's type
    and the line that raised it.

    Raises:
        ExpungeError: raised on purpose by ``work``.
        RuntimeError: anything else.
    """
    failure: BaseException
    try:
        return work()
    except _CallerError as error:
        failure = error.original
    except (ExpungeError, KeyboardInterrupt, SystemExit) as error:
        failure = refusal_behind(error) or error.with_traceback(None)
        failure.__cause__ = failure.__context__ = None
    except BaseException as error:  # noqa: BLE001 - replaced, not swallowed
        failure = refusal_behind(error) or RuntimeError(f"{what} failed: {place_of(error)}")
    on_failure()
    # Outside any handler, so that Python attaches no context; hence no "from" either.
    raise failure


def from_caller(callback: Callable[..., None] | None) -> Callable[..., None]:
    """Return ``callback`` for use inside ``work``: its exceptions reach the caller unchanged."""

    def report(*progress: object) -> None:
        if callback is None:
            return
        try:
            callback(*progress)
        except BaseException as error:  # noqa: BLE001 - passed on
            raise _CallerError(error) from None

    return report

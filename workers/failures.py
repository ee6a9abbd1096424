"""What may be said about an exception, and whether trying again can help."""

import traceback
from pathlib import Path

from app.domain.errors import (
    ConflictError,
    ExpungeError,
    InvalidInputError,
    NotFoundError,
    ParameterError,
    PlanError,
    RunFailedError,
    TargetNotMetError,
)

_PERMANENT = (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ParameterError,
    PlanError,
    RunFailedError,
    TargetNotMetError,
)


def is_permanent(error: BaseException) -> bool:
    """Say whether the same run would fail in the same way again."""
    return isinstance(error, _PERMANENT)


def describe(error: BaseException) -> str:
    """Return what may be shown of an error: our own message, or a type and the place.

    Messages of foreign exceptions can quote data, so they are left out.
    """
    if isinstance(error, ExpungeError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"internal error: {type(error).__name__}{place}"

"""Which failures of a run are permanent."""

from app.domain.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ParameterError,
    PlanError,
    RunFailedError,
    TargetNotMetError,
    VerificationError,
    WriteRefusedError,
)

_PERMANENT = (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ParameterError,
    PlanError,
    RunFailedError,
    TargetNotMetError,
    VerificationError,
    WriteRefusedError,
)


def is_permanent(error: BaseException) -> bool:
    """Return whether the same run would fail again in the same way."""
    return isinstance(error, _PERMANENT)

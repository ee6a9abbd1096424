"""Whether trying again can help."""

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
    """Say whether the same run would fail in the same way again."""
    return isinstance(error, _PERMANENT)

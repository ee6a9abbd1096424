"""Which failures of a run are permanent."""

from app.domain import errors

_PERMANENT = (
    errors.ConflictError,
    errors.ImportFailedError,
    errors.InvalidInputError,
    errors.NotFoundError,
    errors.ParameterError,
    errors.PlanError,
    errors.RunFailedError,
    errors.TargetNotMetError,
    errors.VerificationError,
    errors.WriteRefusedError,
)


def is_permanent(error: BaseException) -> bool:
    """Return whether the same run would fail again in the same way."""
    return isinstance(error, _PERMANENT)

"""Version 1 of ``dp_sgd``'s account, so that certificates that state it verify to the last digit.

As valid as the present one, slower and less tight: cells of 1e-3, or of 1e-2 for a large epsilon.
"""

import importlib
from functools import lru_cache
from typing import Any

from app.accounting.dp_sgd import members_taken, require_group, rounded_profile
from app.accounting.guarantees import ProfileGuarantee
from app.domain.checks import require_fraction, require_positive, require_steps
from app.domain.errors import CalibrationError

_RESOLUTION = 1e-3
_COARSE_RESOLUTION = 1e-2
# Beyond this epsilon a coarse composition loses less than 0.2 %, and a fine one takes long.
_COARSE_ENOUGH = 8.0
_PROBE_DELTA = 1e-5


def account(
    *, noise_multiplier: float, sampling_rate: float, steps: int, group_size: int
) -> ProfileGuarantee:
    """Return the guarantee for ``group_size`` records, in some seconds.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: dp_accounting cannot compose these parameters.
    """
    training = (
        require_positive("noise_multiplier", noise_multiplier),
        require_fraction("sampling_rate", sampling_rate),
        require_steps("steps", steps),
        require_group(group_size),
    )
    accountant = _composed(*training, _COARSE_RESOLUTION)
    if not accountant.get_epsilon(_PROBE_DELTA) > _COARSE_ENOUGH:
        accountant = _composed(*training, _RESOLUTION)
    return rounded_profile(accountant.get_delta, accountant.get_epsilon)


@lru_cache(maxsize=4)
def _composed(
    noise_multiplier: float, sampling_rate: float, steps: int, group_size: int, resolution: float
) -> Any:  # noqa: ANN401 - dp_accounting has no types
    events = importlib.import_module("dp_accounting.dp_event")
    pld = importlib.import_module("dp_accounting.pld.pld_privacy_accountant")
    if sampling_rate == 1:
        event = events.GaussianDpEvent(noise_multiplier / group_size)
    else:
        event = events.MixtureOfGaussiansDpEvent(
            noise_multiplier, *members_taken(sampling_rate, group_size)
        )
    accountant = pld.PLDAccountant(value_discretization_interval=resolution)
    try:
        return accountant.compose(event, steps)
    except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
        raise CalibrationError("dp_accounting cannot compose these parameters") from error

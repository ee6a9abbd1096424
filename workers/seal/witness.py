"""Checks before publication that the run drew the noise that its certificate will claim.

The noise source counts the numbers it gives out; the claim follows from the certificate's
parameters. So a run that deviated from its plan, or whose noise was not added, is not published.
"""

from collections.abc import Mapping

from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan, TrainingKind
from app.domain.states import Basis
from app.evidence.certificates.parameters import draws_of
from app.evidence.certificates.statement import CertifyingPhase
from app.planning.mechanisms.mechanism import Draws

_ROUNDING = 1e-9


def require_drawn(
    phase: CertifyingPhase, drawn: Mapping[float, int], *, basis: Basis, trains: bool, size: int
) -> None:
    """Check a run's noise: ``drawn`` counts the numbers that the source gave out, by deviation.

    ``trains`` says whether the run trained the network, of ``size`` weights, from scratch.

    Raises:
        TargetNotMetError: some of the claimed noise was not drawn.
    """
    if phase.plan.training is TrainingKind.PRIVATE:
        # Later certificates rest on its training, whatever this one says.
        claimed = [_private_training(phase.plan, size=size)] if trains else []
    else:
        claimed = draws_of(phase.plan.mechanism, phase.parameters, basis=basis)
    for noise_std in {draws.noise_std for draws in claimed}:
        least = noise_std * (1 - _ROUNDING)
        needed = sum(draws.count for draws in claimed if draws.noise_std >= least)
        if sum(count for std, count in drawn.items() if std >= least) < needed:
            raise TargetNotMetError("the run drew less noise than its certificate would claim")


def _private_training(plan: Plan, *, size: int) -> Draws:
    settings = plan.settings
    return Draws(
        noise_std=settings["noise_multiplier"] * settings["gradient_clip"],
        count=int(settings["private_steps"]) * size,
    )

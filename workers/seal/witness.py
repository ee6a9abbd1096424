"""Before publication: did the run draw the noise that its certificate is about to claim?

The numbers come from the noise source, which counts what it gives out; what is claimed comes from
the certificate's parameters. So a plan that was not followed, or that counts noise which was never
added, is not published.
"""

from collections.abc import Mapping

from app.certificates.noise import draws_of
from app.certificates.statement import CertifyingPhase
from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan, TrainingKind
from app.domain.states import Basis
from app.planning.mechanisms.mechanism import Draws

_ROUNDING = 1e-9


def require_drawn(
    phase: CertifyingPhase, drawn: Mapping[float, int], *, basis: Basis, trains: bool, size: int
) -> None:
    """Check a run's noise.

    Args:
        phase: what the certificate will say of the run.
        drawn: how many numbers its source gave out, by their standard deviation.
        basis: of the certificate.
        trains: whether the run trained the network from nothing.
        size: how many weights the network trains.

    Raises:
        TargetNotMetError: some of the noise that is claimed was not drawn.
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

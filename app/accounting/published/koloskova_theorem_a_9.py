"""Koloskova et al. 2025, Theorem A.9: gradient clipping by Renyi divergence.

    D_q <= (q/2) [rho^T 2 C0 + s (1 - rho^T)/(1 - rho)]^2 / [sigma^2 (1 - rho^{2T})/(1 - rho^2)]

with rho = 1 - gamma lambda, s = 2 gamma C1, constant parameters. In the theorem the products run
over the steps after t; the printed index is right for constant rho only. Its choice of shifts can
make an intermediate distance negative; the value is then still an upper bound, because an earlier
prefix (``gradient_clipping``, running minimum) is smaller.

Guarantee: Renyi curve. Neighbouring relation: any two starts. Assumptions: as
``gradient_clipping``.
"""

from app.accounting import gradient_clipping
from app.accounting.chains.noisy_chain import prefix_mu
from app.accounting.guarantees import RenyiGuarantee
from app.accounting.search import smallest_noise
from app.accounting.terms import Terms
from app.domain.checks import require_noise, require_positive, require_steps

NAME = "koloskova_theorem_a_9"
VERSION = 1
TERMS = Terms(
    neighbours=gradient_clipping.TERMS.neighbours,
    adaptive=False,
    assumptions=gradient_clipping.TERMS.assumptions,
    source="Koloskova et al. 2025, Theorem A.9",
)


def account(
    *,
    initial_clip: float,
    gradient_clip: float,
    learning_rate: float,
    weight_decay: float,
    noise_std: float,
    steps: int,
) -> RenyiGuarantee:
    """Return the Renyi curve of ``steps`` equal steps.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    size = gradient_clipping.step_size(
        gradient_clip=gradient_clip, learning_rate=learning_rate, weight_decay=weight_decay
    )
    mu = prefix_mu(
        distance=2 * require_positive("initial_clip", initial_clip),
        contraction=size.contraction,
        shift=size.shift,
        noise_std=require_noise("noise_std", noise_std),
        steps=require_steps("steps", steps),
    )
    factor = mu * mu / 2 * (1 + 1e-15)
    return RenyiGuarantee(terms=TERMS, curve=lambda order: order * factor)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    initial_clip: float,
    gradient_clip: float,
    learning_rate: float,
    weight_decay: float,
    steps: int,
) -> float:
    """Return the smallest noise_std that reaches (epsilon, delta) by this route, rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: no noise of reasonable size reaches the target.
    """

    def meets(noise_std: float) -> bool:
        guarantee = account(
            initial_clip=initial_clip,
            gradient_clip=gradient_clip,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            noise_std=noise_std,
            steps=steps,
        )
        return guarantee.epsilon(delta=delta) <= require_positive("epsilon", epsilon)

    return smallest_noise(meets, scale=require_positive("initial_clip", initial_clip))

"""Output perturbation (Koloskova et al. 2025, equation 1): clip the weights, add noise once.

    x0 = clip(x, initial_clip) + N(0, noise_std^2 I)

Symbols of the paper: C0 = initial_clip, sigma = noise_std. Guarantee: mu-GDP with
mu = 2 C0 / sigma, exactly. Neighbouring relation: any two starts. Assumptions: ``TERMS``. Source:
docs/guarantees.md, section 4.
"""

from app.accounting import gaussian
from app.accounting.computed_guarantee import computed
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.precision import NONE, sampling_residue
from app.accounting.search import meeting, smallest_noise
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import require_noise, require_positive

NAME = "output_perturbation"

TERMS = Terms(
    neighbours=Neighbours.ANY_START,
    adaptive=False,
    assumptions=enforced(
        "the reference frame does not depend on the training data",
        "all parameters were fixed before the run",
        "the weights before the noise were not released or stored",
    ),
    source="Koloskova et al. 2025, eq. 1; Dong, Roth & Su 2022, Theorem 2.7",
)


def account(
    *, initial_clip: float, noise_std: float, dimension: int | None = None
) -> GaussianGuarantee:
    """Return the guarantee of one release; with a ``dimension``, of one computed in floats."""
    initial_clip = require_positive("initial_clip", initial_clip)
    noise_std = require_noise("noise_std", noise_std)
    mu = 2 * initial_clip / noise_std * (1 + 1e-15)
    residue = NONE
    if dimension is not None:
        residue = sampling_residue(
            dimension=dimension, draws=1, reach=initial_clip, noise_std=noise_std
        )
    return computed(GaussianGuarantee(terms=TERMS, mu=mu), residue)


def calibrate(
    *, epsilon: float, delta: float, initial_clip: float, dimension: int | None = None
) -> float:
    """Return the smallest noise_std that reaches (epsilon, delta), rounded up."""
    distance = 2 * require_positive("initial_clip", initial_clip)
    exact = distance / gaussian.mu_of(epsilon=epsilon, delta=delta) * (1 + 4e-15)
    if dimension is None:
        return exact
    meets = meeting(
        lambda std: account(initial_clip=initial_clip, noise_std=std, dimension=dimension),
        epsilon=epsilon,
        delta=delta,
    )
    return smallest_noise(meets, scale=exact)

"""Delete-to-Descent (Neel, Roth & Sharifi-Malvajerdi 2021), with the drift that really remains.

Full-batch gradient descent with the largest step size, eta = 2 / (smoothness + 2 weight_decay), and
one noisy release from which the lineage goes on: ``tracked_release`` at that step size. One step
contracts by gamma = smoothness / (smoothness + 2 weight_decay), the paper's own factor.

Unlike the theorems as published (``published.neel_theorem_9`` and ``_28``) this assumes no
convergence of training, covers any number of records at once, and keeps no secret state.

Guarantee: mu-GDP. Neighbouring relation: zero_out or replacement. Assumptions: as
``tracked_release``.
"""

from app.accounting import tracked_release
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.strong_convexity import largest_learning_rate
from app.accounting.terms import Neighbours

NAME = "delete_to_descent"
VERSION = 1
TERMS = tracked_release.TERMS


def account(
    *,
    drift: float,
    weight_decay: float,
    smoothness: float,
    noise_std: float,
    steps: int = 0,
    neighbours: Neighbours = Neighbours.ZERO_OUT,
) -> GaussianGuarantee:
    """Return the guarantee of a release ``steps`` noise-free iterations after the request.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    rate = largest_learning_rate(weight_decay=weight_decay, smoothness=smoothness)
    return tracked_release.account(
        drift=drift,
        learning_rate=rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        noise_std=noise_std,
        steps=steps,
        neighbours=neighbours,
    )


def calibrate(
    *,
    epsilon: float,
    delta: float,
    drift: float,
    weight_decay: float,
    smoothness: float,
    steps: int = 0,
) -> float:
    """Return the smallest noise_std that reaches (epsilon, delta), rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: the conversion of the target did not converge.
    """
    rate = largest_learning_rate(weight_decay=weight_decay, smoothness=smoothness)
    return tracked_release.calibrate(
        epsilon=epsilon,
        delta=delta,
        drift=drift,
        learning_rate=rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        steps=steps,
    )


def steps_needed(
    *,
    epsilon: float,
    delta: float,
    drift: float,
    weight_decay: float,
    smoothness: float,
    noise_std: float,
) -> int:
    """Return the smallest number of iterations that reaches (epsilon, delta); may be 0.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: more than a thousand million are needed.
    """
    rate = largest_learning_rate(weight_decay=weight_decay, smoothness=smoothness)
    return tracked_release.steps_needed(
        epsilon=epsilon,
        delta=delta,
        drift=drift,
        learning_rate=rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        noise_std=noise_std,
    )

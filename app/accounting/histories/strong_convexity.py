"""The losses for which drift can be tracked, and what one step does to it.

    f(x) = (1/batch_size) sum over the batch of l(x; record) + (weight_decay/2) |x|^2

with l convex, ``smoothness``-smooth and ``lipschitz``-Lipschitz in x. For a step size of at most
2 / (smoothness + 2 weight_decay) the map x -> x - learning_rate grad f(x) is c-Lipschitz with
c = 1 - learning_rate weight_decay (Nesterov 2003, Theorem 2.1.12), also with records zeroed out.
The papers ask for 1 / (smoothness + weight_decay); so do their own bounds (``papers_contraction``).
Source: docs/guarantees.md, section 6.

Symbols of Chien et al. 2024: eta = learning_rate, m = weight_decay, L = smoothness + weight_decay,
M = lipschitz, b = batch_size, n = records. Of Chourasia & Shah 2023: lambda = weight_decay,
beta = smoothness, L = lipschitz.
"""

from fractions import Fraction

from app.accounting.chains.noisy_chain import one_minus_product
from app.accounting.terms import Assumption, Neighbours, enforced
from app.domain.checks import require_non_negative, require_positive
from app.domain.errors import ParameterError

# Room for the rounding of a caller that passes 1 / (smoothness + weight_decay) itself. The map is
# c-Lipschitz up to 2 / (smoothness + 2 weight_decay), well beyond.
_STEP_SIZE_SLACK = 1e-12

ASSUMPTIONS: tuple[Assumption, ...] = enforced(
    "the loss of one record is convex, smooth and Lipschitz with the stated constants",
    "the step size is at most 2 / (smoothness + 2 weight_decay)",
    "batches are a fixed partition, drawn without looking at the data, visited cyclically",
    "every gradient after the request came from retained records",
    "all parameters were fixed before the run",
)


def contraction(*, learning_rate: float, weight_decay: float, smoothness: float) -> float:
    """Return 1 - learning_rate * weight_decay, the Lipschitz constant of one step, rounded up."""
    learning_rate, weight_decay, smoothness = _checked(learning_rate, weight_decay, smoothness)
    if Fraction(learning_rate) * (Fraction(smoothness) + 2 * Fraction(weight_decay)) > 2:
        raise ParameterError("learning_rate", "at most 2 / (smoothness + 2 weight_decay)")
    return one_minus_product(learning_rate, weight_decay)


def largest_learning_rate(*, weight_decay: float, smoothness: float) -> float:
    """Return 2 / (smoothness + 2 weight_decay), rounded down: the step of Delete-to-Descent."""
    _, weight_decay, smoothness = _checked(1.0, weight_decay, smoothness)
    return 2 / (smoothness + 2 * weight_decay) * (1 - 1e-15)


def papers_contraction(*, learning_rate: float, weight_decay: float, smoothness: float) -> float:
    """Return 1 - learning_rate * weight_decay where the step size meets the papers' condition."""
    learning_rate, weight_decay, smoothness = _checked(learning_rate, weight_decay, smoothness)
    if learning_rate * (smoothness + weight_decay) > 1 + _STEP_SIZE_SLACK:
        raise ParameterError("learning_rate", "at most 1 / (smoothness + weight_decay)")
    return one_minus_product(learning_rate, weight_decay)


def _checked(
    learning_rate: float, weight_decay: float, smoothness: float
) -> tuple[float, float, float]:
    return (
        require_positive("learning_rate", learning_rate),
        require_non_negative("weight_decay", weight_decay),
        require_positive("smoothness", smoothness),
    )


def gradient_shift(
    *, learning_rate: float, lipschitz: float, batch_size: int, neighbours: Neighbours
) -> float:
    """Return how far one forgotten record moves one step, rounded up: kappa eta M / b."""
    if batch_size < 1:
        raise ParameterError("batch_size", "a whole number of at least 1")
    size = require_positive("learning_rate", learning_rate)
    size *= require_positive("lipschitz", lipschitz)
    return factor(neighbours) * size / batch_size * (1 + 2.0**-50)


def factor(neighbours: Neighbours) -> float:
    """Return kappa: 1 for ``zero_out``, 2 for ``replacement``; others have no drift."""
    try:
        return {Neighbours.ZERO_OUT: 1.0, Neighbours.REPLACEMENT: 2.0}[Neighbours(neighbours)]
    except (KeyError, ValueError) as error:
        raise ParameterError("neighbours", "zero_out or replacement") from error

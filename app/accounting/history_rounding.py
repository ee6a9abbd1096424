"""What floats do to a lineage: how far its computed head may be from that of real arithmetic.

Every position after noise is a grid point, at most half a cell's diagonal from the sum that was
rounded, and every step computes its gradient in float64, at most ``step_error`` off. In each world
the computed chain is compared with the ideal one by Theorem 4, whose shifts are these errors alone;
they are hidden by the noise of the next step or release. docs/guarantees.md, section 11.
"""

import math

from app.accounting.history import History, Recipe, Release, Steps
from app.accounting.minorant import geometric_sum, power
from app.accounting.precision import (
    NONE,
    Residue,
    cell_diagonal,
    noise_norm,
    sampling_residue,
)

_UNIT = 2.0**-53


def residue_of(history: History) -> Residue:
    """Return the residue of a lineage's head; none where the recipe states no dimension.

    Raises:
        ParameterError: some noise is too small for float64 to add to such weights.
    """
    dimension = history.recipe.dimension
    noisy = [(event, _noise_events(event)) for event in history.events]
    draws = sum(count for _, count in noisy)
    if dimension is None or draws == 0:
        return NONE
    smallest = min(
        event.noise_std for event, count in noisy if count and isinstance(event, Steps | Release)
    )
    reach = _reach(history, dimension)
    sampled = sampling_residue(dimension=dimension, draws=draws, reach=reach, noise_std=smallest)
    walked = _walked(history, dimension, step_error(history.recipe, reach=reach))
    return Residue(mu=(sampled.mu + walked) * (1 + 1e-12), delta=sampled.delta)


def step_error(recipe: Recipe, *, reach: float) -> float:
    """Return how far one step in float64 may be from the same step in real arithmetic.

    With u = 2^-53, d weights of norm X at most and features of norm 1 at most: logits are off by
    1.01 d u X, probabilities by e^(2 * that) - 1 and the roundings of a softmax over at most d
    classes, the sum over b records by b more roundings, the update by four of numbers of norm at
    most X + eta M.
    """
    dimension = recipe.dimension or 0
    gradient = 3 * dimension * reach + 4 * reach + 2 * dimension + 2 * recipe.batch_size + 64
    update = 8 * (reach + recipe.learning_rate * recipe.lipschitz)
    return _UNIT * (recipe.learning_rate * gradient + update)


def _reach(history: History, dimension: int) -> float:
    """Return a bound on the norm of every iterate; noise exceeds its share with chance 2^-58."""
    recipe = history.recipe
    pull = recipe.learning_rate * recipe.lipschitz
    reach = min(pull * history.steps, recipe.cap)
    if recipe.contraction < 1:
        reach = min(reach, pull / (1 - recipe.contraction))
    variance = 0.0
    for event in history.events:
        if isinstance(event, Release):
            variance += event.noise_std**2
        elif isinstance(event, Steps):
            lasting = geometric_sum(recipe.contraction**2, event.count)
            variance += event.noise_std**2 * lasting
    return reach + noise_norm(dimension=dimension, noise_std=math.sqrt(variance))


def _walked(history: History, dimension: int, error: float) -> float:
    """Return mu of the errors of rounding, step by step, in one world."""
    rate = history.recipe.contraction
    waiting, squares = 0.0, 0.0
    for event in history.events:
        if isinstance(event, Release) and event.noise_std > 0:
            squares += (waiting / event.noise_std) ** 2
            waiting = cell_diagonal(dimension=dimension, noise_std=event.noise_std) / 2
        elif isinstance(event, Steps) and event.noise_std == 0:
            waiting = power(rate, event.count) * waiting + error * geometric_sum(rate, event.count)
        elif isinstance(event, Steps):
            half = cell_diagonal(dimension=dimension, noise_std=event.noise_std) / 2
            lasting = min(event.count - 1, (1 + rate) / (1 - rate) if rate < 1 else math.inf)
            squares += ((rate * waiting + error) / event.noise_std) ** 2
            squares += lasting * ((rate * half + error) / event.noise_std) ** 2
            waiting = half
    return math.sqrt(squares)


def _noise_events(event: object) -> int:
    if isinstance(event, Steps) and event.noise_std > 0:
        return event.count
    return int(isinstance(event, Release) and event.noise_std > 0)

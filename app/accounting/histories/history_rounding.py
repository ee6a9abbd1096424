"""What floats do to a lineage: how far its computed head may be from that of real arithmetic.

In each world the computed chain is compared with the ideal one by Theorem 3, whose shifts are the
roundings alone; the noise of the next step or release hides them. Source: docs/guarantees.md,
sections 6.5 and 11.
"""

import math
from collections.abc import Iterator

from app.accounting.chains.minorant import geometric_sum, power
from app.accounting.histories.history import History, Recipe, Release, Steps
from app.accounting.precision import NONE, Residue, cell_diagonal, noise_norm, sampling_residue

_UNIT = 2.0**-53


def residue_of(history: History) -> Residue:
    """Return the residue of a lineage's head; none where the recipe states no dimension."""
    recipe, dimension = history.recipe, history.recipe.dimension
    if dimension is None:
        return NONE
    rate = recipe.contraction
    sampled, hidden, delta, waiting = 0.0, 0.0, 0.0, 0.0  # squares of mu; then a distance
    for event, reach in zip(history.events, reaches(history), strict=True):
        if not isinstance(event, Steps | Release):
            continue
        error, count = step_error(recipe, reach=reach), 1
        if isinstance(event, Steps):
            count = event.count
        if isinstance(event, Steps) and event.noise_std == 0:
            waiting = power(rate, count) * waiting + error * geometric_sum(rate, count)
        if event.noise_std == 0:
            continue
        left = sampling_residue(
            dimension=dimension, draws=count, reach=reach, noise_std=event.noise_std
        )
        sampled, delta = sampled + left.mu**2, delta + left.delta
        half = cell_diagonal(dimension=dimension, noise_std=event.noise_std) / 2
        if isinstance(event, Steps):
            waiting = rate * waiting + error
            lasting = min(count - 1, (1 + rate) / (1 - rate) if rate < 1 else math.inf)
            hidden += lasting * ((rate * half + error) / event.noise_std) ** 2
        hidden += (waiting / event.noise_std) ** 2
        waiting = half + error  # of a projection after the last noise
    mu = math.sqrt(sampled) + math.sqrt(hidden)
    return Residue(mu=mu * (1 + 1e-12), delta=delta * (1 + 1e-12))


def step_error(recipe: Recipe, *, reach: float) -> float:
    """Return how far a step in float64 may be off, at norms up to ``reach`` (section 6.5)."""
    d = recipe.dimension or 0
    gradient = d * reach + 13 * reach + 9 * d + 2 * recipe.batch_size + 40
    gradient *= max(1.0, recipe.lipschitz / math.sqrt(2), recipe.smoothness / 0.5)
    update = 4 * (reach + recipe.learning_rate * recipe.lipschitz)
    if recipe.radius is not None:
        update += (d + 10) * reach
    return _UNIT * (recipe.learning_rate * gradient + update)


def reaches(history: History) -> Iterator[float]:
    """Yield bounds on the norms of the iterates up to each event's end, before and after noise.

    Noise exceeds its share with a chance below 2^-58 at each noisy step; roundings are within the
    tenth that is added. A projection to a larger ball changes nothing.
    """
    recipe, steps, variance = history.recipe, 0, 0.0
    pull = recipe.learning_rate * recipe.lipschitz
    most = math.inf if recipe.radius is None else recipe.radius + pull
    if recipe.contraction < 1:
        most = min(most, pull / (1 - recipe.contraction))
    for event in history.events:
        if isinstance(event, Release):
            variance += event.noise_std**2
        elif isinstance(event, Steps):
            steps += event.count
            lasting = geometric_sum(recipe.contraction**2, event.count)
            variance += event.noise_std**2 * lasting
        noise = noise_norm(dimension=recipe.dimension or 0, noise_std=math.sqrt(variance))
        yield 1.1 * (min(pull * (steps + 1), most) + noise)

"""Koloskova et al. 2025, Tables 5 to 10: the parameters that the paper ran at each budget.

They are in the coordinates of the weights themselves. The rows of the budgets that are run are
here; between two of them the smaller one's row is taken. Sigma is the published one, whatever it is
worth: ``Setting.epsilon`` says that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.accounting import gradient_clipping, model_clipping, output_perturbation
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.mechanisms.model_clipping import ModelClipping
from workers.mechanisms.output_perturbation import OutputPerturbation
from workers.training.noisy_phase import Rule

DELTA: Final = 1e-5
_TARGET_EPSILON: Final = 1.0
# A target a hair above what the parameters give, so that rounding does not refuse them.
_MARGIN: Final = 1 + 1e-9

_Row = tuple[float, ...]

# Budget in epochs: weight decay, gradient clip, learning rate, initial clip, steps, sigma.
_GRADIENT_CLIPPING: Final[Mapping[str, Mapping[int, _Row]]] = {
    "mnist": {
        1: (10, 100, 0.0001, 0.01, 1, 0.02827),
        2: (750, 10, 0.0001, 0.01, 6, 0.007752),
        5: (10, 100, 0.0001, 0.01, 1, 0.02827),
        6: (750, 10, 0.0001, 0.01, 6, 0.007752),
        7: (10, 100, 0.0001, 0.01, 1, 0.02827),
    },
    "cifar10": {
        1: (200, 100, 0.001, 0.1, 1, 0.254558),
        4: (50, 10, 0.01, 1, 5, 0.275702),
        7: (50, 10, 0.01, 20, 11, 0.25679),
        10: (50, 100, 0.0001, 0.1, 10, 0.088213),
        25: (500, 100, 0.001, 1, 5, 0.275702),
        49: (1, 10, 0.01, 0.1, 1, 0.281429),
    },
}

# Budget in epochs: model clip, sigma, learning rate, weight decay, steps.
_MODEL_CLIPPING: Final[Mapping[str, Mapping[int, _Row]]] = {
    "mnist": {
        1: (0.001, 0.01, 0.0001, 900, 1),
        4: (0.001, 0.01, 0.0001, 500, 1),
        5: (0.001, 0.01, 0.01, 0.01, 1),
        6: (0.01, 0.01, 0.001, 900, 6),
        7: (0.001, 0.01, 0.001, 10, 1),
        8: (0.001, 0.01, 0.01, 900, 1),
        9: (0.001, 0.01, 0.0001, 10, 1),
        10: (0.001, 0.01, 0.001, 10, 1),
    },
    "cifar10": {
        1: (0.2, 0.2, 0.01, 100, 6),
        4: (0.5, 0.5, 0.001, 10, 6),
        10: (0.625, 0.5, 0.0001, 100, 9),
        25: (0.625, 0.5, 0.0001, 10, 9),
        49: (0.5, 0.5, 0.01, 100, 6),
    },
}

# Budget in epochs: initial clip, sigma.
_OUTPUT_PERTURBATION: Final[Mapping[str, Mapping[int, _Row]]] = {
    "mnist": {1: (0.01, 0.096896)},
    "cifar10": {1: (1.0, 9.68961), 4: (0.1, 0.968961), 40: (0.01, 0.096896)},
}


@dataclass(frozen=True)
class Setting:
    """A mechanism as the paper ran it, and what that is worth.

    Attributes:
        mechanism: with the published parameters.
        epsilon: what they truly give at delta = 1e-5.
        end_std: standard deviation of the noise in the weights after the last noisy step.
    """

    mechanism: Rule
    epsilon: float
    end_std: float


def setting(method: str, *, data: str, budget: float) -> Setting:
    """Return the paper's setting of a mechanism for a data set and a budget in epochs."""
    table = "cifar10" if data == "cifar10" else "mnist"
    return _READ[method](table, budget)


def _gradient_clipping(table: str, budget: float) -> Setting:
    decay, clip, rate, start, steps, sigma = _row(_GRADIENT_CLIPPING[table], budget)
    mechanism = GradientClipping(
        initial_clip=start,
        gradient_clip=clip,
        learning_rate=rate,
        weight_decay=decay,
        noise_std=sigma,
        steps=int(steps),
    )
    guarantee = mechanism.account()
    variance = sum((1 - rate * decay) ** (2 * step) * sigma**2 for step in range(int(steps)))
    return Setting(mechanism, guarantee.epsilon(delta=DELTA) * _MARGIN, variance**0.5)


def _model_clipping(table: str, budget: float) -> Setting:
    clip, sigma, rate, decay, steps = _row(_MODEL_CLIPPING[table], budget)
    needed = model_clipping.steps_needed(
        epsilon=_TARGET_EPSILON, delta=DELTA, initial_clip=1.0, model_clip=clip, noise_std=sigma
    )
    if needed != steps:
        raise ValueError(
            f"the published {steps:g} steps are not the {needed} that the target takes"
        )
    mechanism = ModelClipping(
        epsilon=_TARGET_EPSILON,
        initial_clip=1.0,
        model_clip=clip,
        noise_std=sigma,
        steps=needed,
        learning_rate=rate,
        weight_decay=decay,
    )
    return Setting(mechanism, _TARGET_EPSILON, sigma)


def _output_perturbation(table: str, budget: float) -> Setting:
    clip, sigma = _row(_OUTPUT_PERTURBATION[table], budget)
    mechanism = OutputPerturbation(initial_clip=clip, noise_std=sigma)
    epsilon = mechanism.account().epsilon(delta=DELTA) * _MARGIN
    return Setting(mechanism, epsilon, sigma)


def _row(rows: Mapping[int, _Row], budget: float) -> _Row:
    published = [epochs for epochs in rows if epochs <= budget]
    return rows[max(published, default=min(rows))]


_READ = {
    gradient_clipping.NAME: _gradient_clipping,
    model_clipping.NAME: _model_clipping,
    output_perturbation.NAME: _output_perturbation,
}

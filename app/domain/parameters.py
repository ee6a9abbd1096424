"""The number of weights of a zoo architecture, computed without building it.

``workers/training/networks/architectures.py`` builds the networks.
"""

import itertools
import math

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.heads import boosted_trees
from app.domain.heads.linear_head import DEFAULT_BIAS
from app.domain.tasks.built_in import rows_of

MOST_PARAMETERS = 100_000_000
"""What a built-in architecture, or a head on a backbone, may have; not a factory's network."""


def parameters_of(
    architecture: ArchitectureSpec,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    rows: int | None = None,
    words: int = 0,
) -> int | None:
    """Count a network's weights, of a head in ``rows``, without its backbone; None if unknown.

    ``words`` hold the set of categories of each node of boosted trees.
    """
    if architecture.of is not None:
        one = parameters_of(
            architecture.member, input_shape=input_shape, classes=classes, rows=rows, words=words
        )
        return None if one is None else one * architecture.networks
    size, options = math.prod(input_shape), architecture.options
    of_a_head = rows_of(classes) if rows is None else rows
    widths: list[int]
    count: int | None = None
    match architecture.name:
        case "logistic" | "ridge_head":
            count = _dense([size, classes])
        case "mlp":
            count = _dense([size, *options["hidden"], classes])
        case "cnn":
            widths = [input_shape[0] if len(input_shape) == 3 else 1, *options["channels"]]
            filters = sum(9 * a * b + b for a, b in itertools.pairwise(widths))
            count = filters + _dense([widths[-1], classes])
        case "linear_head":
            columns = size + (1 if options.get("bias", DEFAULT_BIAS) > 0 else 0)
            count = of_a_head * columns
        case "boosted_trees":
            trees = boosted_trees.options_of(options)
            nodes = int(trees["trees"]) * (2 * int(trees["leaves"]) - 1)
            count = of_a_head * ((4 + words) * nodes + 1)
    return count


def features_of(architecture: ArchitectureSpec, *, input_shape: tuple[int, ...]) -> int | None:
    """Count the features that a network gives to a head on top of it; None if unknown."""
    match architecture.name:
        case "logistic":
            return math.prod(input_shape)
        case "mlp":
            return int([math.prod(input_shape), *architecture.options["hidden"]][-1])
        case "cnn":
            return int(architecture.options["channels"][-1])
    return None


def require_parameters(count: int | None) -> None:
    """Raise ``InvalidInputError`` above the limit; None, a factory's network, passes."""
    if count is not None and count > MOST_PARAMETERS:
        raise InvalidInputError(
            f"architecture: it would have {count} parameters for these features and classes, and "
            f"at most {MOST_PARAMETERS} are allowed"
        )


def _dense(widths: list[int]) -> int:
    return sum(a * b + b for a, b in itertools.pairwise(widths))

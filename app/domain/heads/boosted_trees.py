"""Boosted trees, which learn tables best and are grown in about a second.

They are a function of the retained records in the order of their arrival, without a seed: computed
anew for each request (docs/guarantees.md, section 13).
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from app.domain.architectures import ArchitectureSpec
from app.domain.columns import CategoryColumn
from app.domain.errors import InvalidInputError
from app.domain.heads.ridge_head import require_unweighted
from app.domain.tasks.built_in import SQUARED, ClassificationSpec, MultiLabelSpec, RegressionSpec
from app.domain.tasks.spec import TaskSpec

NAME = "boosted_trees"
DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {"trees": 100, "leaves": 31, "depth": 10, "smallest_leaf": 20, "shrinkage": 0.1}
)
"""Those of scikit-learn's ``HistGradientBoosting``, but for the depth, which has no limit there."""

WORD_BITS: Final = 32
"""Categories whose places in a node's set one number of a published file holds."""
_MOST_CATEGORIES: Final = 255
"""Of one column, that scikit-learn reads as categories."""


def options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of boosted trees, of which some are given; see ``ArchitectureSpec``."""
    return {**DEFAULTS, **given}


def categories_of(architecture: ArchitectureSpec, task: TaskSpec) -> tuple[tuple[int, int], ...]:
    """Return where the features of each column of categories begin, and how many they are.

    Trees read such a column as one: what they see are the places of the categories, column by
    column, and then all other features. Columns of more than 255 categories stay features.
    """
    found, start = list[tuple[int, int]](), 0
    for column in () if architecture.on_features else task.input_columns:
        if isinstance(column, CategoryColumn) and 2 <= column.width <= _MOST_CATEGORIES:
            found.append((start, column.width))
        start += column.width
    return tuple(found)


def words_of(categories: Sequence[tuple[int, int]]) -> int:
    """Return how many numbers hold a node's set of categories."""
    return -(-max((width for _, width in categories), default=0) // WORD_BITS)


def require_nodes(
    columns: Iterable[float], left: Iterable[float], *, nodes: int, seen: float
) -> None:
    """Raise ``InvalidInputError`` unless each node compares what is seen and leads further down.

    Args:
        columns: of the nodes of all trees, one tree after the other.
        left: the places of their left children, 0 for leaves.
        nodes: of each tree.
        seen: how many columns the trees see; infinity where it is unknown.
    """
    for number, (column, child) in enumerate(zip(columns, left, strict=True)):
        inside = child == 0 or number % nodes < child < nodes - 1
        if not (inside and child % 1 == 0 and 0 <= column < seen and column % 1 == 0):
            raise InvalidInputError("a node of the trees names no column, or no node below it")


def require_task(task: TaskSpec) -> None:
    """Raise ``InvalidInputError`` unless such trees can learn a task."""
    if isinstance(task, RegressionSpec):
        if task.loss != SQUARED:
            raise InvalidInputError(
                f"task: boosted_trees learn numbers by the squared loss, not by {task.loss}"
            )
    elif not isinstance(task, ClassificationSpec | MultiLabelSpec):
        raise InvalidInputError(
            f"task: {task.name} is not for boosted_trees: classification, multi_label and "
            "regression are"
        )
    require_unweighted(task, NAME, "they count every record and class once")

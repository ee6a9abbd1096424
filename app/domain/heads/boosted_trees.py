"""Boosted trees, which learn tables best and are grown in about a second.

They are a function of the retained records in the order of their arrival, without a seed: computed
anew for each request (docs/guarantees.md, section 13).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from app.domain.errors import InvalidInputError
from app.domain.heads.ridge_head import require_unweighted
from app.domain.tasks.built_in import SQUARED, ClassificationSpec, MultiLabelSpec, RegressionSpec
from app.domain.tasks.spec import TaskSpec

NAME = "boosted_trees"
DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {"trees": 100, "leaves": 31, "depth": 10, "smallest_leaf": 20, "shrinkage": 0.1}
)
"""Those of scikit-learn's ``HistGradientBoosting``, but for the depth, which has no limit there."""


def options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of boosted trees, of which some are given; see ``ArchitectureSpec``."""
    return {**DEFAULTS, **given}


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

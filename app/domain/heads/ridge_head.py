"""Ridge heads: linear models that are solved from sums over the records, not trained by gradients.

Features are rounded to whole numbers on a public scale, so that all sums are exact
(docs/guarantees.md, section 13).
"""

from collections.abc import Sequence
from dataclasses import replace

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.recipes import TrainingRecipe
from app.domain.schema import InputSchema
from app.domain.tasks.built_in import SQUARED, ClassificationSpec, MultiLabelSpec, RegressionSpec
from app.domain.tasks.spec import TaskSpec

NAME = "ridge_head"
DEFAULT_RANGE = 16.0
_LARGEST_BYTE = 255


def with_range(architecture: ArchitectureSpec, records: InputSchema) -> ArchitectureSpec:
    """Return a ridge head's architecture with its ``feature_range``.

    By default that is what ``uint8`` features can reach by the task's scale, ``records``, and
    16 for others. No record has a part in it.
    """
    if architecture.name != NAME or "feature_range" in architecture.options:
        return architecture
    reached = DEFAULT_RANGE
    if records.dtype == "uint8" and not architecture.on_features:
        ends = (records.offset, _LARGEST_BYTE - records.offset)
        reached = max(abs(end) for end in ends) * abs(records.scale)
    return replace(architecture, options={**architecture.options, "feature_range": reached})


def require_task(architecture: ArchitectureSpec, task: TaskSpec) -> None:
    """Raise ``InvalidInputError`` unless sums over the records are all that a task needs."""
    options = architecture.options
    if isinstance(task, RegressionSpec):
        if task.loss != SQUARED:
            raise _refusal(f"regression by the loss {task.loss}", "only the squared loss is")
        if "target_range" not in options:
            raise InvalidInputError(
                "architecture: a ridge_head that learns numbers needs target_range, a public bound "
                "to which (target - offset) * scale is clipped"
            )
    elif not isinstance(task, ClassificationSpec | MultiLabelSpec):
        raise _refusal(task.name, "classification, multi_label and regression are")
    elif "target_range" in options:
        raise InvalidInputError("architecture: target_range is for regression only")
    require_unweighted(task, f"a {NAME}", "its sums count every record and class once")


def require_unweighted(task: TaskSpec, name: str, reason: str) -> None:
    """Raise ``InvalidInputError`` if some records of a task count for more than others."""
    for option in ("weight", "class_weights", "label_smoothing"):
        if getattr(task, option, None):
            raise InvalidInputError(
                f"task: {option} is not for {name}: {reason}; use a linear_head"
            )


def _refusal(what: str, instead: str) -> InvalidInputError:
    return InvalidInputError(f"task: {what} is not for a ridge_head: {instead}")


def recipe_of(
    document: object, architecture: str = NAME, *, taken: Sequence[str] = ()
) -> TrainingRecipe:
    """Return the recipe of a JSON object, of which what is solved takes the split and ``taken``.

    What the service shows of such a recipe may be sent again.
    """
    given, shown = TrainingRecipe.fields_of(document), TrainingRecipe(epochs=1)
    taken = ("held_out_fraction", *taken)
    for name, value in given.items():
        if name not in taken and value != getattr(shown, name):
            only = " and ".join(map(repr, taken))
            raise InvalidInputError(f"recipe: {architecture} takes no {name!r}, only {only}")
    return TrainingRecipe(**{"epochs": 1, **given})

"""Ridge heads: linear models that are solved from sums over the records, not trained by gradients.

Features are rounded to whole numbers on a public scale, so that all sums are exact
(docs/guarantees.md, section 13).
"""

from dataclasses import replace

from app.domain.architecture import CLASSIFIERS, ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.recipes.recipe import TrainingRecipe
from app.domain.schema import FeatureSchema

NAME = "ridge_head"
RIDGE, CLASS_MEANS, DISCRIMINANT = CLASSIFIERS
DEFAULT_RANGE = 16.0
_LARGEST_BYTE = 255


def with_range(architecture: ArchitectureSpec, records: FeatureSchema) -> ArchitectureSpec:
    """Return a ridge head's architecture with its ``feature_range``.

    By default that is what ``uint8`` features can reach, and 16 for others. No record has a part in
    it.

    Args:
        architecture: of the model.
        records: the schema of its dataset.

    Raises:
        InvalidInputError: what the features can reach is out of the option's range.
    """
    if architecture.name != NAME or "feature_range" in architecture.options:
        return architecture
    reached = DEFAULT_RANGE
    if records.dtype == "uint8" and not architecture.on_features:
        ends = (records.offset, _LARGEST_BYTE - records.offset)
        reached = max(abs(end) for end in ends) * abs(records.scale)
    return replace(architecture, options={**architecture.options, "feature_range": reached})


def recipe_of(document: object) -> TrainingRecipe:
    """Return the recipe of a JSON object, of which a solution needs only the split.

    Raises:
        InvalidInputError: a field is unknown, out of its range, or not for a ridge head.
    """
    given = TrainingRecipe.fields_of(document)
    for name in given:
        if name != "held_out_fraction":
            raise InvalidInputError(
                f"recipe: a ridge_head is solved and takes no {name!r}, only 'held_out_fraction'"
            )
    return TrainingRecipe(**{"epochs": 1, **given})

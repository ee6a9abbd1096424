"""A training recipe in request bodies."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from app.api.protocol.schemas import Body, described_by
from app.domain.recipes.groups import MOST_GROUPS, ParameterGroup
from app.domain.recipes.recipe import MOST_EPOCHS, TrainingRecipe

_DEFAULTS = TrainingRecipe()


# The bounds are only documented here; the recipe itself checks them, with its own problem type.
class ParameterGroupBody(Body):
    """Parameters with a learning rate or a weight decay of their own."""

    model_config = ConfigDict(json_schema_extra=described_by(ParameterGroup))

    parameters: str = Field(examples=["*.bias"])
    learning_rate: float | None = Field(default=None, json_schema_extra={"exclusiveMinimum": 0})
    weight_decay: float | None = Field(default=None, json_schema_extra={"minimum": 0})


class RecipeBody(Body):
    """How a model is trained. A ``linear_head`` has defaults of its own: plain descent."""

    model_config = ConfigDict(json_schema_extra=described_by(TrainingRecipe))

    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = Field(
        default=_DEFAULTS.learning_rate, json_schema_extra={"exclusiveMinimum": 0}
    )
    momentum: float = Field(
        default=_DEFAULTS.momentum, json_schema_extra={"minimum": 0, "exclusiveMaximum": 1}
    )
    weight_decay: float = Field(default=_DEFAULTS.weight_decay, json_schema_extra={"minimum": 0})
    groups: list[ParameterGroupBody] = Field(
        default=[], json_schema_extra={"maxItems": MOST_GROUPS}
    )
    epochs: int = Field(
        default=_DEFAULTS.epochs, json_schema_extra={"minimum": 1, "maximum": MOST_EPOCHS}
    )
    batch_size: int = Field(default=_DEFAULTS.batch_size, json_schema_extra={"minimum": 1})
    micro_batches: int = Field(default=_DEFAULTS.micro_batches, json_schema_extra={"minimum": 1})
    clip_norm: float | None = Field(default=None, json_schema_extra={"exclusiveMinimum": 0})
    precision: Literal["float32", "bfloat16"] = "float32"
    schedule: Literal["one_cycle", "cosine", "constant"] = "one_cycle"
    warmup_fraction: float | None = Field(
        default=None, json_schema_extra={"minimum": 0, "exclusiveMaximum": 1}
    )
    held_out_fraction: float = Field(
        default=_DEFAULTS.held_out_fraction, json_schema_extra={"minimum": 0, "maximum": 0.9}
    )
    patience: int | None = Field(default=None, json_schema_extra={"minimum": 1})

    def given(self) -> dict[str, Any]:
        """Return the fields that the caller has set."""
        return self.model_dump(exclude_unset=True)

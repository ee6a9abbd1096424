"""Parameters with a learning rate or a weight decay of their own."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from app.domain.checks import is_number, known_fields
from app.domain.errors import InvalidInputError
from app.domain.recipes.fields import require

MOST_GROUPS: Final = 64
_LONGEST_PATTERN: Final = 500
_FIELDS: Final = frozenset({"parameters", "learning_rate", "weight_decay"})


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters, by their names, and what the optimiser does otherwise with them.

    Attributes:
        parameters: a pattern for names of parameters, such as ``layers.0.*`` or ``*.bias``: ``*``
            is any text, ``?`` any letter. A parameter belongs to the first group that has it.
        learning_rate: the highest rate of the schedule for them; null for the recipe's.
        weight_decay: for them; null for the recipe's.

    Raises:
        InvalidInputError: a field is out of its range, or the group changes nothing.
    """

    parameters: str
    learning_rate: float | None = field(default=None, metadata={"exclusiveMinimum": 0})
    weight_decay: float | None = field(default=None, metadata={"minimum": 0})

    def __post_init__(self) -> None:
        require(
            "groups: parameters",
            isinstance(self.parameters, str) and 0 < len(self.parameters) <= _LONGEST_PATTERN,
            f"a pattern for names, of at most {_LONGEST_PATTERN} letters",
        )
        rate, decay = self.learning_rate, self.weight_decay
        require("groups: learning_rate", rate is None or is_number(rate, above=0), "above 0")
        require("groups: weight_decay", decay is None or is_number(decay, least=0), "0 or above")
        require(
            "groups",
            (rate, decay) != (None, None),
            "objects with parameters and a learning_rate or a weight_decay",
        )

    @classmethod
    def all_from_json(cls, document: object) -> "tuple[ParameterGroup, ...]":
        """Parse a list of groups, or raise ``InvalidInputError``."""
        require("groups", isinstance(document, list | tuple), "a list")
        groups = []
        for group in document:  # type: ignore[attr-defined]
            if isinstance(group, cls):
                groups.append(group)
                continue
            require(
                "groups",
                isinstance(group, Mapping) and "parameters" in group,
                "objects with parameters and a learning_rate or a weight_decay",
            )
            groups.append(cls(**known_fields(group, "recipe: groups", _FIELDS)))
        return tuple(groups)

    def to_json(self) -> dict[str, Any]:
        """Return the group as plain JSON values, without what it leaves to the recipe."""
        return {name: value for name, value in vars(self).items() if value is not None}


def members_of(groups: Sequence[ParameterGroup], names: Collection[str]) -> list[list[str]]:
    """Return each group's parameters, then those of no group; no group may be without any."""
    left, members = list(names), []
    for group in groups:
        own = [name for name in left if fnmatchcase(name, group.parameters)]
        if not own:
            taken = any(fnmatchcase(name, group.parameters) for name in names)
            raise InvalidInputError(
                f"recipe: groups: no trainable parameter is named {group.parameters!r}"
                + (" that an earlier group has not" if taken else "")
                + f"; one is {next(iter(names), None)!r}"
            )
        members.append(own)
        left = [name for name in left if name not in own]
    return [*members, left]

"""Random variants of records in training: another one at every visit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.checks import is_number
from app.domain.errors import InvalidInputError
from app.domain.schema import InputSchema

FLIP, SHIFT, NOISE = AUGMENTATIONS = ("flip", "shift", "noise")
_AMOUNT: Final = {SHIFT: "pixels", NOISE: "std"}
_MOST_PIXELS: Final = 1024
_EXACT_OR_TRACKED: Final = ("linear_head", "ridge_head")


@dataclass(frozen=True)
class Augmentation:
    """One change of a record's inputs, as the network sees them.

    Attributes:
        name: ``flip`` (half of the images, left and right), ``shift`` (an image by up to so many
            pixels each way, zeros come in) or ``noise`` (normal, added to each number).
        amount: of ``shift``, pixels; of ``noise``, its standard deviation; of ``flip``, 0.
    """

    name: str
    amount: float = 0.0

    @classmethod
    def from_json(cls, document: object) -> "Augmentation":
        """Parse JSON, or raise ``InvalidInputError``."""
        if not isinstance(document, Mapping) or document.get("name") not in AUGMENTATIONS:
            raise InvalidInputError(f"task: augment lists {', '.join(AUGMENTATIONS)} by name")
        name = str(document["name"])
        field = _AMOUNT.get(name)
        if document.keys() != {"name", *([] if field is None else [field])}:
            has = "no other field" if field is None else f"the field {field!r}"
            raise InvalidInputError(f"task: the augmentation {name} has {has}")
        amount = 0.0 if field is None else document[field]
        whole = name != SHIFT or (type(amount) is int and amount <= _MOST_PIXELS)
        if field is not None and not (whole and is_number(amount, above=0)):
            raise InvalidInputError(f"task: {field} of the augmentation {name} is out of its range")
        return cls(name, amount)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        field = _AMOUNT.get(self.name)
        return {"name": self.name} | ({} if field is None else {field: self.amount})


def require_augmentable(
    augment: tuple[Augmentation, ...], schema: InputSchema, architecture: ArchitectureSpec
) -> None:
    """Raise ``InvalidInputError`` where augmentation makes no sense, or breaks a proof."""
    if not augment:
        return
    if architecture.name in _EXACT_OR_TRACKED:
        raise InvalidInputError(
            f"task: a {architecture.name} needs the same gradient of a record at every visit, or "
            "looks at it once: leave augment out, or use another architecture"
        )
    if architecture.on_features:
        raise InvalidInputError(
            "task: a frozen backbone computes each record's features once: leave augment out, or "
            'start from the backbone\'s weights with "frozen": false'
        )
    if schema.tokens:
        raise InvalidInputError("task: augment changes numbers, and the inputs are tokens")
    if len(schema.shape) not in (2, 3) and any(each.name != NOISE for each in augment):
        raise InvalidInputError(
            "task: flip and shift are for images, of shape [channels, height, width] or "
            "[height, width]"
        )

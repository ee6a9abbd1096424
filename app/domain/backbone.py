"""Public backbones: weights that do not depend on private records.

The uploader asserts this and nothing can check it, so every certificate of a model that uses a
backbone labels it as asserted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.domain.errors import InvalidInputError

_FIELDS: Final = frozenset({"name", "frozen"})


@dataclass(frozen=True)
class BackboneUse:
    """How a model uses a backbone.

    Attributes:
        name: the backbone's name.
        frozen: true: the model is a head on the backbone's fixed features. False: the whole
            network is trained, starting from the backbone's weights.

    Raises:
        InvalidInputError: a field has the wrong type.
    """

    name: str
    frozen: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInputError("architecture: backbone.name must be text")
        if not isinstance(self.frozen, bool):
            raise InvalidInputError("architecture: backbone.frozen must be true or false")

    @classmethod
    def from_json(cls, document: object) -> "BackboneUse":
        """Parse ``to_json`` output or user input.

        Raises:
            InvalidInputError: the document is malformed.
        """
        if not isinstance(document, Mapping):
            raise InvalidInputError("architecture: backbone must be an object")
        unknown = sorted(str(key) for key in set(document) - _FIELDS)
        if unknown:
            raise InvalidInputError(f"architecture: unknown field 'backbone.{unknown[0]}'")
        if "name" not in document:
            raise InvalidInputError("architecture: backbone.name must be text")
        return cls(**document)

    def to_json(self) -> dict[str, Any]:
        """Return the use as plain JSON values."""
        return {"name": self.name, "frozen": self.frozen}


@dataclass(frozen=True)
class BackboneDigest:
    """The exact public weights that a model builds on, as named in its certificates.

    Attributes:
        name: the backbone's name.
        sha256: SHA-256 of its weight file, in hex.
        frozen: see ``BackboneUse``.
    """

    name: str
    sha256: str
    frozen: bool

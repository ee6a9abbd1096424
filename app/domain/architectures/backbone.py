"""Public backbones: weights that do not depend on private records.

The uploader asserts this and nothing can check it, so every certificate of a model that uses a
backbone labels it as asserted.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from app.domain.checks import known_fields
from app.domain.errors import InvalidInputError

MOST_LAYERS: Final = 64
POOLS: Final = ("1x1", "2x2")


@dataclass(frozen=True)
class BackboneUse:
    """How a model uses a backbone.

    Attributes:
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
        """Parse ``to_json`` output or user input, or raise ``InvalidInputError``."""
        fields = known_fields(document, "architecture: backbone", ("name", "frozen"))
        if "name" not in fields:
            raise InvalidInputError("architecture: backbone.name must be text")
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        """Return the use as plain JSON values."""
        return {"name": self.name, "frozen": self.frozen}


@dataclass(frozen=True)
class FeatureLayer:
    """A layer whose output, averaged over positions, is a part of a frozen backbone's features.

    Attributes:
        module: its name in the network's ``named_modules()``.
        pool: ``1x1``: the average over all positions of an image [n, C, H, W] or all tokens
            [n, T, C]; an output [n, C] stays as it is. ``2x2``: the averages over the four quarters
            of an image.
        std: whether the standard deviations over all positions follow, one for each channel.

    Raises:
        InvalidInputError: a field has the wrong type.
    """

    module: str
    pool: str = POOLS[0]
    std: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.module, str) or not self.module:
            raise InvalidInputError("layers: module must be the name of a module")
        if self.pool not in POOLS:
            raise InvalidInputError(f"layers: pool must be one of {', '.join(POOLS)}")
        if not isinstance(self.std, bool):
            raise InvalidInputError("layers: std must be true or false")

    @classmethod
    def all_from_json(cls, document: object) -> "tuple[FeatureLayer, ...]":
        """Parse a list of layers, or raise ``InvalidInputError``."""
        if not isinstance(document, list) or len(document) > MOST_LAYERS:
            raise InvalidInputError(f"layers: must be a list of at most {MOST_LAYERS} layers")
        layers = []
        for layer in document:
            if not isinstance(layer, Mapping) or "module" not in layer:
                raise InvalidInputError("layers: each must be an object with the name of a module")
            layers.append(cls(**known_fields(layer, "layers", ("module", "pool", "std"))))
        if len(set(layers)) < len(layers):
            raise InvalidInputError("layers: one is named twice")
        return tuple(layers)

    def to_json(self) -> dict[str, Any]:
        """Return the layer as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class BackboneDigest:
    """The exact public weights that a model builds on, as named in its certificates.

    Attributes:
        sha256: of the weights' file.
        definition: of what computes with these weights; see ``definition_digest``.
        frozen: as in ``BackboneUse``.
    """

    name: str
    sha256: str
    definition: str
    frozen: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BackboneDigest":
        """Read what ``to_json`` wrote."""
        return cls(**document)


def definition_digest(
    *,
    architecture: Mapping[str, Any],
    layers: Sequence[FeatureLayer],
    input_shape: Sequence[int],
    classes: int,
) -> str:
    """Return the SHA-256 of what computes with a backbone's weights, in hex.

    The same weights make other features in another network, with other options, from other layers.
    """
    document = {
        "architecture": architecture,
        "layers": [layer.to_json() for layer in layers],
        "input_shape": list(input_shape),
        "classes": classes,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

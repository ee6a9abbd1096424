"""The base of a network: its public tensors, which no run trains and no version's file holds.

They are its frozen parameters and its constant buffers, as the operator's factory or an uploaded
backbone provides them. The operator asserts that they do not depend on private records; the service
sees to it that they are the same in every run of the model.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from app.domain.errors import InvalidInputError


@dataclass(frozen=True)
class BaseDigest:
    """The exact base of a model, as named in its certificates and in its files.

    Attributes:
        sha256: of the tensors' names, types, shapes and bytes; see ``of``.
        tensors: their names, sorted.
    """

    sha256: str
    tensors: tuple[str, ...]

    @classmethod
    def of(cls, digests: Mapping[str, str]) -> "BaseDigest | None":
        """Return the digest of tensors with such digests each, by name; None if there are none."""
        if not digests:
            return None
        text = json.dumps(dict(digests), sort_keys=True, separators=(",", ":"))
        return cls(hashlib.sha256(text.encode()).hexdigest(), tuple(sorted(digests)))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"sha256": self.sha256, "tensors": list(self.tensors)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` wrote, or raise ``InvalidInputError``."""
        if set(document) != {"sha256", "tensors"}:
            raise InvalidInputError("base: an object with sha256 and tensors")
        return cls(document["sha256"], tuple(document["tensors"]))

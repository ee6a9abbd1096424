"""How a published model is used: what its file says of itself, beside its tensors.

The text is metadata of the safetensors file, so that the certificate covers it with the digest of
the file. For the same reason it cannot name the certificate: the certificate names the file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self

from app.domain.architectures import ArchitectureSpec, BaseDigest, FeatureLayer, definition_digest
from app.domain.columns import ClassName
from app.domain.errors import InvalidInputError
from app.domain.schema import InputSchema
from app.domain.tasks import catalogue
from app.domain.tasks.spec import TaskSpec

METADATA_NAME: Final = "expunge"


@dataclass(frozen=True, kw_only=True)
class BackboneDescription:
    """The public weights that a model builds on.

    Attributes:
        name, sha256, frozen: as named in certificates.
        architecture: its network; a frozen one's tensors are in the file, under ``backbone.``.
        classes: of the task that it was trained for.
        layers: whose outputs are a frozen one's features; none: the network's own output is.
    """

    name: str
    sha256: str
    frozen: bool
    architecture: ArchitectureSpec
    classes: int
    layers: tuple[FeatureLayer, ...] = ()

    def definition(self, *, input_shape: tuple[int, ...]) -> str:
        """Return the digest of the definition, as certificates state it."""
        return definition_digest(
            architecture=self.architecture.to_json(),
            layers=self.layers,
            input_shape=input_shape,
            classes=self.classes,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "frozen": self.frozen,
            "architecture": self.architecture.to_json(),
            "classes": self.classes,
            "layers": [layer.to_json() for layer in self.layers],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Restore it."""
        fields = dict(document)
        architecture = ArchitectureSpec.from_json(fields.pop("architecture"))
        layers = FeatureLayer.all_from_json(fields.pop("layers"))
        return cls(architecture=architecture, layers=layers, **fields)


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """One version of a model.

    Attributes:
        model, version: which.
        architecture: its network.
        task: what it learned, and from which columns.
        backbone: the public weights that it builds on, if any.
        base: the digest of its network's public tensors, which are not in the file; None without.
        out: which members of an ensemble are not in the file, each with the first version without.
        record_id: the column of the records' ids in tables of the dataset.
    """

    model: str
    version: int
    architecture: ArchitectureSpec
    task: TaskSpec
    backbone: BackboneDescription | None = None
    base: BaseDigest | None = None
    out: Mapping[int, int] = field(default_factory=dict)
    record_id: str = "record_id"

    @cached_property
    def schema(self) -> InputSchema:
        """Of what its network reads, before a backbone."""
        return self.task.schema()

    @property
    def output_names(self) -> tuple[ClassName, ...]:
        """The names of the network's outputs, such as classes; their numbers if they have none."""
        if self.task.names is not None:
            return self.task.names
        return tuple(range(self.schema.classes))

    def to_metadata(self) -> dict[str, str]:
        """Return it as a safetensors file's metadata."""
        document = {
            "model": self.model,
            "version": self.version,
            "architecture": self.architecture.to_json(),
            "task": self.task.to_json(),
            "schema": self.schema.to_json(),
            "output_names": None if self.task.names is None else list(self.task.names),
            "backbone": None if self.backbone is None else self.backbone.to_json(),
            **({} if self.base is None else {"base": self.base.to_json()}),
            **({"out": {str(member): self.out[member] for member in self.out}} if self.out else {}),
            "record_id": self.record_id,
        }
        return {METADATA_NAME: json.dumps(document, sort_keys=True)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Self | None:
        """Read a file's metadata, or raise ``InvalidInputError``; None if it describes no model."""
        text = metadata.get(METADATA_NAME)
        if text is None:
            return None
        try:
            return cls._from_json(json.loads(text))  # type: ignore[arg-type]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidInputError("the file's description of its model is malformed") from error

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        backbone = document["backbone"]
        described = cls(
            model=document["model"],
            version=document["version"],
            architecture=ArchitectureSpec.from_json(document["architecture"]),
            task=catalogue.from_json(document["task"]),
            backbone=None if backbone is None else BackboneDescription.from_json(backbone),
            base=BaseDigest.from_json(document["base"]) if "base" in document else None,
            out={int(member): since for member, since in document.get("out", {}).items()},
            record_id=document["record_id"],
        )
        networks = described.architecture.networks
        known = all(
            0 <= member < networks and type(s) is int for member, s in described.out.items()
        )
        if not known or len(described.out) >= networks:
            raise ValueError("no ensemble lacks such members")
        if json.loads(described.to_metadata()[METADATA_NAME]) != document:
            raise ValueError("unknown fields, or others that contradict each other")
        return described

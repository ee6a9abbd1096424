"""The names of an ensemble's tensors, and the digests by which its members are compared."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

_NAME: Final = re.compile(r"members\.(0|[1-9][0-9]{0,3})\.(.+)", re.DOTALL)


@dataclass(frozen=True)
class Member:
    """One member of a published ensemble.

    Attributes:
        sha256: of its tensors.
        trained_in: the version whose run trained it.
    """

    sha256: str
    trained_in: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Restore it."""
        return cls(**document)


def tensor_name(member: int, name: str) -> str:
    """Return what an ensemble calls a member's tensor."""
    return f"members.{member}.{name}"


def own_name(name: str) -> str:
    """Return what a member itself calls a tensor of an ensemble; other names stay."""
    found = _NAME.fullmatch(name)
    return name if found is None else found[2]


def by_member(names: Iterable[str]) -> dict[int, dict[str, str]] | None:
    """Return each member's names in the ensemble by its own; None if one is not a member's."""
    found: dict[int, dict[str, str]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        found.setdefault(int(match[1]), {})[match[2]] = name
    return found

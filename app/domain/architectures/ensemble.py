"""The names of an ensemble's tensors, and the digests by which its members are compared."""

import re
from collections.abc import Iterable, Mapping, Sequence
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


_OWN: Final = "the operator's own network"


def network_in_words(architecture: Mapping[str, Any]) -> str:
    """Return what a model's architecture is, from its JSON."""
    member = architecture.get("of")
    if member is None:
        return _kind(architecture)
    return f"{_counted(architecture['members'])} of {_kind(member)}"


def members_in_words(members: Sequence[Member], *, version: int) -> str:
    """Return how many members a version trained anew, and when the others were trained."""
    anew = sum(member.trained_in == version for member in members)
    if anew == len(members):
        return f"{_counted(anew)}, all trained in this version"
    older = [
        f"{len(places)} in version {number}"
        for number, places in members_by_version(members).items()
        if number != version
    ]
    return f"{_counted(len(members))}, {anew} trained anew in this version, {', '.join(older)}"


def members_by_version(members: Iterable[Member]) -> dict[int, list[int]]:
    """Return which members each version trained, the newest version first; counted from 0."""
    found: dict[int, list[int]] = {}
    for place, member in enumerate(members):
        found.setdefault(member.trained_in, []).append(place)
    return dict(sorted(found.items(), reverse=True))


def _kind(architecture: Mapping[str, Any]) -> str:
    return _OWN if architecture["name"] == "custom" else str(architecture["name"])


def _counted(members: int) -> str:
    return f"{members} member{'' if members == 1 else 's'}"

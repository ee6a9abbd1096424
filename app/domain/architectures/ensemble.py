"""The names of an ensemble's tensors, and the digests by which its members are compared.

A member is *active* while it is part of what is released, and *out* while it is not.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

_NAME: Final = re.compile(r"members\.(0|[1-9][0-9]{0,3})\.(.+)", re.DOTALL)


@dataclass(frozen=True)
class Member:
    """One member of a published ensemble: with its first two fields active, with the third out.

    Attributes:
        sha256: of its tensors.
        trained_in: the version whose run trained it.
        out_since: the first version without it.
    """

    sha256: str | None = None
    trained_in: int | None = None
    out_since: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether it is part of what is released."""
        return self.out_since is None

    @property
    def since(self) -> int:
        """The version since which it is as it is."""
        return self.trained_in or self.out_since or 0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; what it has not is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

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
    """Return how many members a version trained anew, when others were trained, and who is out."""
    anew = sum(member.trained_in == version for member in members)
    out = [place for place, member in enumerate(members) if not member.is_active]
    if anew == len(members):
        return f"{_counted(anew)}, all trained in this version"
    older = [
        f"{len(places)} in version {number}"
        for number, places in members_by_version(members).items()
        if number != version
    ]
    if out:
        older.append(f"{len(out)} out")
    return f"{_counted(len(members))}, {anew} trained anew in this version, {', '.join(older)}"


def members_by_version(members: Iterable[Member], *, out: bool = False) -> dict[int, list[int]]:
    """Return which members each version trained, the newest version first; counted from 0.

    ``out`` asks instead for those that are out, by the first version without them.
    """
    found: dict[int, list[int]] = {}
    for place, member in enumerate(members):
        if member.is_active != out:
            found.setdefault(member.since, []).append(place)
    return dict(sorted(found.items(), reverse=True))


def out_of(members: Iterable[Member]) -> dict[int, int]:
    """Return which members are out, each with the first version without it."""
    return {place: each.since for place, each in enumerate(members) if not each.is_active}


def fewest_to_train(
    members: Sequence[Member], concerned: Collection[int], *, fewest: int
) -> frozenset[int]:
    """Return which members are trained so that ``fewest`` are active without those ``concerned``.

    None where enough others are. Which ones follows from the requests alone.
    """
    left = {place for place, each in enumerate(members) if each.is_active} - set(concerned)
    holes = sorted(set(range(len(members))) - left)
    return frozenset(holes[: max(0, fewest - len(left))])


def _kind(architecture: Mapping[str, Any]) -> str:
    return _OWN if architecture["name"] == "custom" else str(architecture["name"])


def _counted(members: int) -> str:
    return f"{members} member{'' if members == 1 else 's'}"

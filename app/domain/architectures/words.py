"""Networks in words, for people; no name of an operator's code is in them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from app.domain.architectures.ensemble import Member

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

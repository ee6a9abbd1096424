"""What a network's weights follow from, beside its definition and its retained records in order.

A version keeps it encrypted under the key of its weights, so that both are shredded together. With
the seed, the weights tell more of each record: who has both can try what they would be without it.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

KIND: Final = "provenance"


@dataclass(frozen=True)
class Provenance:
    """How one network was trained, or one member of an ensemble.

    Attributes:
        seed: 32 bytes of the operating system's, in hex.
        made_with: what must be equal for equal bits: device, threads, kernels, libraries.
    """

    seed: str = field(repr=False)
    made_with: Mapping[str, str]

    def in_words(self) -> str:
        """Return what must be equal, in one line."""
        return ", ".join(f"{name} {value}" for name, value in self.made_with.items())


def to_bytes(members: Mapping[int, Provenance]) -> bytes:
    """Return what a version keeps, by member; a network that is none is member 0."""
    return json.dumps({member: asdict(each) for member, each in members.items()}).encode()


def from_bytes(content: bytes) -> dict[int, Provenance]:
    """Return what ``to_bytes`` wrote."""
    return {int(member): Provenance(**each) for member, each in json.loads(content).items()}


def arithmetic(found: Mapping[int, Provenance], members: Collection[int]) -> str | None:
    """Return what must be equal to compute all of these again; None if one of them cannot be."""
    if not found.keys() >= set(members):
        return None
    return "; or ".join(sorted({found[member].in_words() for member in members}))

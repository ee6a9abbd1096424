"""The small print of a guarantee: whom it compares, when it holds, who says so."""

from dataclasses import dataclass
from enum import StrEnum


class Neighbours(StrEnum):
    """How the reference world may differ from the real one."""

    ANY_START = "any_start"
    ZERO_OUT = "zero_out"
    REPLACEMENT = "replacement"
    ADD_REMOVE = "add_remove"


class Support(StrEnum):
    """Whether an assumption is enforced by code or is the operator's word."""

    ENFORCED = "enforced"
    ASSERTED = "asserted"


class Direction(StrEnum):
    """Which way the two worlds are compared.

    BOTH: real against reference and back. ONE_WAY: only "whatever the real release shows, the
    reference would have shown almost as often", which is what stops an attacker from proving that
    a record was there.
    """

    BOTH = "both"
    ONE_WAY = "one_way"


@dataclass(frozen=True)
class Assumption:
    """One condition of a theorem."""

    statement: str
    support: Support


@dataclass(frozen=True)
class Terms:
    """The small print of a guarantee: what it compares with what, when it holds, who proved it."""

    neighbours: Neighbours
    adaptive: bool
    assumptions: tuple[Assumption, ...]
    source: str
    direction: Direction = Direction.BOTH
    reference: str = "the same pipeline, run without the forgotten records"


def enforced(*statements: str) -> tuple[Assumption, ...]:
    """Return assumptions that the service's code makes true."""
    return tuple(Assumption(statement, Support.ENFORCED) for statement in statements)


def any_start(source: str) -> Terms:
    """Return the terms of a run of noisy steps from any start, in a public frame."""
    return Terms(
        neighbours=Neighbours.ANY_START,
        adaptive=False,
        assumptions=enforced(
            "every gradient of the noisy steps came from retained records",
            "the reference frame does not depend on the training data",
            "all parameters were fixed before the run",
            "no earlier iterate was released or stored",
        ),
        source=source,
    )


def asserted(*statements: str) -> tuple[Assumption, ...]:
    """Return assumptions that rest on the operator's word."""
    return tuple(Assumption(statement, Support.ASSERTED) for statement in statements)

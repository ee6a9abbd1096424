"""The findings of a search of the stores."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a finding means."""

    BY_DESIGN = "by design"
    PENDING = "pending"
    UNSEARCHED = "unsearched"
    FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """Something found in a store, or a place that cannot be searched.

    Attributes:
        where: the store and the place in it; never an owner's id.
        meaning: what it is and why it is there.
    """

    verdict: Verdict
    where: str
    meaning: str

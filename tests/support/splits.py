"""Held-out records as tests ask for them, which chance alone would now and then not give."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

_DRAWS = 500
_TWO_TO_64 = 1 << 64


@dataclass(frozen=True)
class Split:
    """How one model divides the records of its dataset."""

    salt: bytes
    held_out_fraction: float

    def learned(self, record_keys: set[bytes]) -> set[bytes]:
        """Return the keys of the records that it trains on, as ``Membership`` tells them."""
        return {key for key in record_keys if not self._holds_out(key)}

    def _holds_out(self, key: bytes) -> bool:
        number = int.from_bytes(hashlib.sha256(self.salt + key).digest()[:8])
        return number < self.held_out_fraction * _TWO_TO_64


def fair_salt(
    persons: Sequence[set[bytes]], held_out_fraction: float, others: Sequence[Split]
) -> bytes:
    """Draw a salt that holds out a usual share, and not all records of a person who has several.

    With up to two other models, each holds out a record that the rest have all learned from.

    Args:
        persons: keys of the records of each person.
        held_out_fraction: the new model's.
        others: the models that are there.
    """
    for _ in range(_DRAWS):
        split = Split(os.urandom(32), held_out_fraction)
        if _is_usual(split, persons) and _are_distinct([split, *others], persons):
            break
    return split.salt


def _is_usual(split: Split, persons: Sequence[set[bytes]]) -> bool:
    count = sum(map(len, persons))
    held_out = count - len(split.learned(set().union(*persons)))
    expected = split.held_out_fraction * count
    keeps_some = all(split.learned(person) for person in persons if len(person) > 1)
    return keeps_some and expected / 2 <= held_out <= 2 * expected


def _are_distinct(splits: Sequence[Split], persons: Sequence[set[bytes]]) -> bool:
    if not 1 < len(splits) <= 3:
        return True
    learned = [split.learned(set().union(*persons)) for split in splits]
    return all(
        set.intersection(*learned[:place], *learned[place + 1 :]) - learned[place]
        for place, split in enumerate(splits)
        if split.held_out_fraction
    )

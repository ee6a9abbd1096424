"""Held-out records as tests ask for them, which chance alone would now and then not give."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.ledger.models import definitions
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import RecordRow
from app.registry.membership import Membership
from app.registry.tables import ModelRow

_DRAWS = 500
_EARLY = 16


@dataclass(frozen=True)
class Split:
    """How one model divides the records of its dataset."""

    salt: bytes
    held_out_fraction: float

    def learned(self, records: Sequence[RecordRow]) -> set[bytes]:
        """Return the keys of the records that it trains on."""
        split = Membership(0, 0, self.salt, self.held_out_fraction, is_imported=False)
        return {each.record_key for each in records if not split.is_held_out(each)}


def fair_salt(session: Session, dataset: str, held_out_fraction: float) -> bytes:
    """Draw a salt that holds out a usual share, and nobody whose record is among the first.

    With up to two other models, each holds out a record that the rest have all learned from. So
    tests may name people of the first pushes, and know that a model has learned from them.
    """
    named = datasets.dataset_named(session, dataset).id
    records = session.scalars(
        select(RecordRow).where(RecordRow.dataset_id == named).order_by(RecordRow.seq)
    ).all()
    models = session.scalars(select(ModelRow).where(ModelRow.dataset_id == named)).all()
    others = [Split(each.split_salt, each.recipe["held_out_fraction"]) for each in models]
    for _ in range(_DRAWS):
        split = Split(os.urandom(32), held_out_fraction)
        if _is_usual(split, records) and _are_distinct([split, *others], records):
            break
    return split.salt


def fairly_split(define: Callable[..., Any]) -> Callable[..., Any]:
    """Return what defines models, with a fair salt for each."""

    def defining(database: Any, definition: definitions.ModelDefinition, **more: Any) -> Any:
        with database.transaction() as session:
            fraction = definition.recipe.get("held_out_fraction", 0.1)
            salt = None
            if datasets.find_dataset(session, definition.dataset) and isinstance(fraction, float):
                salt = fair_salt(session, definition.dataset, fraction)
        with patch.object(definitions, "new_split_salt", return_value=salt or os.urandom(32)):
            return define(database, definition, **more)

    return defining


def _is_usual(split: Split, records: Sequence[RecordRow]) -> bool:
    people = list(dict.fromkeys(each.subject_key or each.record_key for each in records))
    early = set(people[: min(_EARLY, 2 * len(people) // 3)])
    first = [each for each in records if (each.subject_key or each.record_key) in early]
    held_out = len(records) - len(split.learned(records))
    expected = split.held_out_fraction * len(records)
    keeps_first = len(split.learned(first)) == len(first)
    return keeps_first and expected / 2 <= held_out <= 2 * expected


def _are_distinct(splits: Sequence[Split], records: Sequence[RecordRow]) -> bool:
    if not 1 < len(splits) <= 3:
        return True
    learned = [split.learned(records) for split in splits]
    return all(
        set.intersection(*learned[:place], *learned[place + 1 :]) - learned[place]
        for place, split in enumerate(splits)
        if split.held_out_fraction
    )

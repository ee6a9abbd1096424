"""Held-out records as tests ask for them, which chance alone would now and then not give."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.ledger.models import definitions
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import RecordRow
from app.registry.membership import Membership
from app.registry.tables import ModelRow

_DRAWS = 5000
_EARLY = 16
_FEW = 40


class Person(NamedTuple):
    """Whose a record is, which is all that decides if it is held out."""

    record_key: bytes | None
    subject_key: bytes | None


def fair_salt(session: Session, dataset: str, held_out_fraction: float) -> bytes:
    """Draw a salt that holds out a usual share, and nobody whose record is among the first.

    With up to two other models, each holds out a record that the rest have all learned from. So
    tests may name people of the first pushes, and know that a model has learned from them. Of few
    people, as many are held out each time: plans for equal numbers are computed once.
    """
    named = datasets.dataset_named(session, dataset).id
    whose = select(RecordRow.record_key, RecordRow.subject_key).order_by(RecordRow.seq)
    people = Counter(
        Person(None if subject else record, subject)
        for record, subject in session.execute(
            whose.where(RecordRow.dataset_id == named, RecordRow.record_key.is_not(None))
        )
    )
    models = session.scalars(select(ModelRow).where(ModelRow.dataset_id == named)).all()
    others = [_split(each.split_salt, each.recipe["held_out_fraction"]) for each in models]
    found = []
    for _ in range(_DRAWS):
        split = _split(os.urandom(32), held_out_fraction)
        if _is_usual(split, people) and _are_distinct([split, *others], people):
            found.append(split)
            is_best = _is_expected(split, people) and _leave_room([split, *others], people)
            if is_best or len(people) > _FEW:
                return split.split_salt
    return max(found or [split], key=lambda each: _is_expected(each, people)).split_salt


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


def _split(salt: bytes, held_out_fraction: float) -> Membership:
    return Membership(0, 0, salt, held_out_fraction, is_imported=False)


def _is_usual(split: Membership, people: Mapping[Person, int]) -> bool:
    """Say so of how a model divides people, each with so many records."""
    if any(_held_out(split, _early(people))):
        return False
    held_out = sum(people[each] for each in _held_out(split, people))
    expected = split.held_out_fraction * sum(people.values())
    return expected / 2 <= held_out <= 2 * expected


def _early(people: Mapping[Person, int]) -> list[Person]:
    return list(people)[: min(_EARLY, 2 * len(people) // 3)]


def _is_expected(split: Membership, people: Mapping[Person, int]) -> bool:
    held_out = sum(people[each] for each in _held_out(split, people))
    expected = split.held_out_fraction * sum(people.values())
    return expected - max(people.values(), default=1) < held_out <= expected


def _held_out(split: Membership, people: Iterable[Person]) -> Iterator[Person]:
    return (each for each in people if split.is_held_out(each))  # type: ignore[arg-type]


def _leave_room(splits: Sequence[Membership], people: Mapping[Person, int]) -> bool:
    """Say whether a third model can hold out somebody whom two have learned from."""
    free = set.intersection(*_learned(splits, people)) - set(_early(people))
    return len(splits) != 2 or bool(free)


def _learned(splits: Sequence[Membership], people: Mapping[Person, int]) -> list[set[Person]]:
    return [people.keys() - set(_held_out(split, people)) for split in splits]


def _are_distinct(splits: Sequence[Membership], people: Mapping[Person, int]) -> bool:
    if not 1 < len(splits) <= 3:
        return True
    learned = _learned(splits, people)
    return all(
        set.intersection(*learned[:place], *learned[place + 1 :]) - learned[place]
        for place, split in enumerate(splits)
        if split.held_out_fraction
    )

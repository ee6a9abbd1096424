"""A task is refused where the dataset's columns are not what it reads, with the column's name."""

import pytest

from app.domain.errors import InvalidInputError
from app.domain.tasks import catalogue
from app.registry.tasks import require_readable
from tests.support.own_tasks import OWN
from tests.support.shops import AREA, FRONT, NOTE, SCHEMA, TASKS

_LEARNS = TASKS["classification"]


@pytest.mark.parametrize("task", [*TASKS.values(), OWN])
def test_what_the_dataset_has_can_be_read(task: dict) -> None:
    require_readable(catalogue.from_json(task), SCHEMA)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (_LEARNS | {"inputs": [AREA | {"name": "aera"}]}, "no column 'aera': it has area, "),
        (_LEARNS | {"inputs": [AREA | {"name": "street"}]}, "'street' is string, where a number"),
        (_LEARNS | FRONT | {"inputs": [FRONT["inputs"][0] | {"name": "note"}]}, "where binary"),
        (_LEARNS | {"inputs": [NOTE["inputs"][0] | {"name": "area"}]}, "where text is expected"),
        (_LEARNS | {"target": {"column": "front", "classes": ["a", "b"]}}, "'front' is binary"),
        (
            _LEARNS | {"target": {"column": "open", "classes": ["no", "yes"]}},
            "column 'open' is bool: its classes are false and true",
        ),
        (
            TASKS["huber"] | {"inputs": [{"name": "open", "kind": "category", "values": ["yes"]}]},
            "column 'open' is bool: its values are false and true",
        ),
        (TASKS["huber"] | {"target": {"columns": ["note"]}}, "'note' is string, where a number"),
        (TASKS["huber"] | {"target": {"columns": ["rents"]}}, "no column 'rents'"),
        (OWN | {"columns": ["area", "rents"]}, "no column 'rents'"),
    ],
)
def test_what_it_has_not_is_refused_by_name(task: dict, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        require_readable(catalogue.from_json(task), SCHEMA)


def test_truth_may_be_spelt_as_text() -> None:
    spelt = _LEARNS | {"target": {"column": "open", "classes": ["false", "true"]}}
    require_readable(catalogue.from_json(spelt), SCHEMA)

"""A task's columns: they come back from JSON as they were, and nothing contradictory gets in."""

import json

import pytest

from app.domain.errors import InvalidInputError, ParameterError
from app.domain.tasks import catalogue

AGE = {"name": "age", "kind": "number", "low": 0, "high": 100, "missing": 40, "flag_missing": True}
PLAN = {"name": "plan", "kind": "category", "values": ["basic", "plus"], "other": True}
IMAGE = {"name": "image", "kind": "array", "shape": [2, 3], "dtype": "uint8"}
TARGET = {"column": "churned", "classes": ["no", "yes"]}
WHOLE = {"name": "classification", "inputs": [AGE, PLAN, IMAGE], "target": TARGET}


def test_a_task_survives_json() -> None:
    task = catalogue.from_json(WHOLE)
    again = catalogue.from_json(json.loads(json.dumps(task.to_json())))

    assert again == task
    assert again.reading_digest == task.reading_digest
    assert task.inputs.width == 2 + 3 + 6
    assert (task.schema().shape, task.schema().dtype) == ((11,), "float32")


def test_knots_survive_json() -> None:
    curve = {"name": "age", "kind": "number", "knots": [0, 40, 100], "missing": 40}
    task = catalogue.from_json(WHOLE | {"inputs": [curve | {"flag_missing": True}]})

    assert task.to_json()["inputs"] == [curve | {"flag_missing": True}]
    assert catalogue.from_json(json.loads(json.dumps(task.to_json()))) == task
    assert task.inputs.width == 3 + 2 + 1


def test_a_single_array_keeps_its_shape_and_type() -> None:
    schema = catalogue.from_json(WHOLE | {"inputs": [IMAGE]}).schema()

    assert (schema.shape, schema.dtype) == ((2, 3), "uint8")


@pytest.mark.parametrize("classes", [["no", "yes"], [-3, 70], [False, True]])
def test_names_of_classes_keep_their_type(classes: list) -> None:
    task = catalogue.from_json(WHOLE | {"target": {"column": "churned", "classes": classes}})

    assert json.dumps(task.to_json()["target"]["classes"]) == json.dumps(classes)


@pytest.mark.parametrize(
    "fault",
    [
        {"inputs": []},
        {"inputs": "age"},
        {"inputs": [AGE, AGE]},
        {"inputs": [AGE | {"low": None}]},
        {"inputs": [AGE | {"low": 100}]},
        {"inputs": [AGE | {"high": float("inf")}]},
        {"inputs": [AGE | {"low": -1e308, "high": 1e308}]},
        {"inputs": [AGE | {"missing": None}]},
        {"inputs": [AGE | {"missing": "40"}]},
        {"inputs": [AGE | {"flag_missing": 1}]},
        {"inputs": [AGE | {"mean": 3}]},
        {"inputs": [AGE | {"kind": "text"}]},
        {"inputs": [AGE | {"offset": 1}]},
        {"inputs": [IMAGE | {"scale": 0}]},
        {"inputs": [IMAGE | {"offset": "1"}]},
        {"inputs": [AGE | {"kind": []}]},
        {"inputs": [AGE | {"name": "a\0"}]},
        {"inputs": [AGE | {"name": "churned"}]},
        {"inputs": [PLAN | {"values": []}]},
        {"inputs": [PLAN | {"values": ["a", " a"]}]},
        {"inputs": [PLAN | {"values": ["Zo\u00eb", "Zoe\u0308"]}]},
        {"inputs": [PLAN | {"values": [1, 2]}]},
        {"inputs": [PLAN | {"values": ["\ud800"]}]},
        {"inputs": [PLAN | {"missing": "gold"}]},
        {"inputs": [IMAGE | {"shape": [0]}]},
        {"inputs": [IMAGE | {"shape": [True]}]},
        {"inputs": [IMAGE | {"dtype": "object"}]},
        {"target": {"column": "churned", "classes": ["no"]}},
        {"target": {"column": "churned", "classes": [0, "yes"]}},
        {"target": {"column": "churned", "classes": [0, True]}},
        {"target": {"column": "churned", "classes": [0.5, 1.5]}},
        {"target": {"column": "churned", "classes": [0, 2**60]}},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_contradictory_task_is_refused(fault: dict) -> None:
    with pytest.raises((InvalidInputError, ParameterError)):
        catalogue.from_json(WHOLE | fault)


@pytest.mark.parametrize("document", [None, [], "text", {}])
def test_what_is_no_task_is_refused(document: object) -> None:
    with pytest.raises(InvalidInputError):
        catalogue.from_json(document)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"name": "regression", "target": {"columns": ["y"]}}, "it needs inputs"),
        (WHOLE | {"inputs": None}, "it needs inputs"),
        (WHOLE | {"inputs": [PLAN | {"knots": [0, 1]}]}, "'plan': a category has no field 'knots'"),
        *(
            (WHOLE | {"inputs": [{"name": "age", "kind": "number", "knots": knots} | more]}, reason)
            for knots, more, reason in (
                ([0], {}, "'age': knots must list 2 to 256"),
                ([*range(257)], {}, "'age': knots must list 2 to 256"),
                ("0, 1", {}, "'age': knots must list"),
                ([], {}, "'age': knots must list"),
                ([0, 2, 1], {}, "'age': knots must increase"),
                ([0, 1, 1], {}, "'age': knots must increase"),
                ([-1e308, 1e308], {}, "'age': knots must increase"),
                ([0, float("inf")], {}, "'age': knots"),
                ([0, "1"], {}, "'age': knots"),
                ([0, 1], {"low": 0, "high": 1}, "'age': give knots, or low and high, or"),
                ([0, 1], {"scale": 2}, "'age': give knots, or low and high, or"),
            )
        ),
        ({"name": "classification", "inputs": [AGE]}, "needs a target"),
        ({"name": "language_model", "inputs": [AGE]}, "reads tokens"),
    ],
)
def test_what_a_task_lacks_is_named(document: dict, reason: str) -> None:
    with pytest.raises((InvalidInputError, ParameterError), match=reason):
        catalogue.from_json(document)

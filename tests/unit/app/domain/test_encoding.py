"""A table's encoding: it comes back from JSON as it was, and nothing contradictory gets in."""

import json

import pytest

from app.domain.encoding import TableEncoding
from app.domain.errors import InvalidInputError, ParameterError

AGE = {"name": "age", "kind": "number", "low": 0, "high": 100, "missing": 40, "flag_missing": True}
PLAN = {"name": "plan", "kind": "category", "values": ["basic", "plus"], "other": True}
IMAGE = {"name": "image", "kind": "array", "shape": [2, 3], "dtype": "uint8"}
LABEL = {"name": "churned", "classes": ["no", "yes"]}
WHOLE = {"columns": [AGE, PLAN, IMAGE], "label": LABEL, "record_id": "id", "subject_id": "person"}


def test_an_encoding_survives_json() -> None:
    encoding = TableEncoding.from_json(WHOLE)
    again = TableEncoding.from_json(json.loads(json.dumps(encoding.to_json())))

    assert again == encoding
    assert again.digest == encoding.digest
    assert encoding.width == 2 + 3 + 6
    assert (encoding.shape, encoding.dtype) == ((11,), "float32")


def test_a_single_array_keeps_its_shape_and_type() -> None:
    encoding = TableEncoding.from_json(WHOLE | {"columns": [IMAGE]})

    assert (encoding.shape, encoding.dtype) == ((2, 3), "uint8")


@pytest.mark.parametrize("classes", [["no", "yes"], [-3, 70], [False, True]])
def test_names_of_classes_keep_their_type(classes: list) -> None:
    label = {"name": "churned", "classes": classes}
    encoding = TableEncoding.from_json(WHOLE | {"label": label})

    assert json.dumps(encoding.to_json()["label"]["classes"]) == json.dumps(classes)


@pytest.mark.parametrize(
    "fault",
    [
        {"columns": []},
        {"columns": "age"},
        {"columns": [AGE, AGE]},
        {"columns": [AGE | {"low": None}]},
        {"columns": [AGE | {"low": 100}]},
        {"columns": [AGE | {"high": float("inf")}]},
        {"columns": [AGE | {"low": -1e308, "high": 1e308}]},
        {"columns": [AGE | {"missing": None}]},
        {"columns": [AGE | {"missing": "40"}]},
        {"columns": [AGE | {"flag_missing": 1}]},
        {"columns": [AGE | {"mean": 3}]},
        {"columns": [AGE | {"kind": "text"}]},
        {"columns": [AGE | {"kind": []}]},
        {"columns": [AGE | {"name": "a\0"}]},
        {"columns": [AGE | {"name": "person"}]},
        {"columns": [AGE | {"name": "churned"}]},
        {"columns": [PLAN | {"values": []}]},
        {"columns": [PLAN | {"values": ["a", " a"]}]},
        {"columns": [PLAN | {"values": ["Zo\u00eb", "Zoe\u0308"]}]},
        {"columns": [PLAN | {"values": [1, 2]}]},
        {"columns": [PLAN | {"values": ["\ud800"]}]},
        {"columns": [PLAN | {"missing": "gold"}]},
        {"columns": [IMAGE | {"shape": [0]}]},
        {"columns": [IMAGE | {"shape": [True]}]},
        {"columns": [IMAGE | {"dtype": "object"}]},
        {"label": {"name": "churned", "classes": ["no"]}},
        {"label": {"name": "churned", "classes": [0, "yes"]}},
        {"label": {"name": "churned", "classes": [0, True]}},
        {"label": {"name": "churned", "classes": [0.5, 1.5]}},
        {"label": {"name": "churned", "classes": [0, 2**60]}},
        {"label": {"name": "id", "classes": [0, 1]}},
        {"record_id": None},
        {"subject_id": 3},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_contradictory_encoding_is_refused(fault: dict) -> None:
    with pytest.raises((InvalidInputError, ParameterError)):
        TableEncoding.from_json(WHOLE | fault)


@pytest.mark.parametrize("document", [None, [], "text", {}])
def test_what_is_no_encoding_is_refused(document: object) -> None:
    with pytest.raises(InvalidInputError):
        TableEncoding.from_json(document)

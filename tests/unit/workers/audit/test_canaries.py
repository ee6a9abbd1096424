"""Paired canaries: nothing but the chosen contents depends on the coins."""

import secrets
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from app.domain.errors import InvalidInputError, InvalidRecordsError
from app.domain.schema import TableSchema
from app.domain.tasks import catalogue
from workers.audit.canaries import Canaries, prepare
from workers.training.tasks.catalogue import encode

SCHEMA = TableSchema.of(
    {
        "age": "int16",
        "pixels": "list<uint8, 4>",
        "plan": "string",
        "rent": "float64",
        "open": "bool",
    },
    record_id="id",
)
AGE = {"name": "age", "kind": "number", "low": 18, "high": 98}
CURVE = {"name": "rent", "kind": "number", "knots": [300, 400, 600]}
CLASSES = {"column": "plan", "classes": ["a", "b", "c"]}
TASK = {"name": "classification", "inputs": [AGE], "target": CLASSES}


def rows(count: int) -> pa.Table:
    numbers = np.arange(count)
    pixels = pa.array(np.repeat(numbers % 256, 4).astype(np.uint8))
    return pa.table(
        {
            "id": [f"own-{i}" for i in numbers],
            "age": numbers,
            "pixels": pa.FixedSizeListArray.from_arrays(pixels, 4),
            "plan": [f"plan-{i}" for i in numbers],
            "rent": numbers / 2,
            "open": numbers % 2 == 0,
        }
    )


def prepared(coins: list[int], monkeypatch: pytest.MonkeyPatch) -> Canaries:
    """Return what the same chance makes with these coins."""
    left = iter(coins)
    monkeypatch.setattr(secrets, "randbits", lambda _: 5)
    monkeypatch.setattr(secrets, "randbelow", lambda _: next(left))
    places = iter(range(1000))
    monkeypatch.setattr(secrets, "token_hex", lambda _: f"{next(places)}")
    return prepare(rows(40), catalogue.from_json(TASK), SCHEMA, len(coins))


def test_only_the_chosen_contents_depend_on_the_coins(monkeypatch) -> None:
    one = prepared([0, 1, 1, 0, 1], monkeypatch)
    other = prepared([1, 1, 0, 0, 0], monkeypatch)
    assert one.others.equals(other.others)
    assert one.ids == other.ids
    assert [each.equals(two) for each, two in zip(one.contents, other.contents, strict=True)]
    assert one.chosen()["id"].to_pylist() == list(one.ids) == other.chosen()["id"].to_pylist()
    for canaries in (one, other):
        for place, coin in enumerate(canaries.coins):
            chosen = canaries.chosen().slice(place, 1)
            assert chosen.equals(canaries.contents[coin].slice(place, 1))
            assert not chosen.equals(canaries.contents[1 - coin].slice(place, 1))
    assert one.coins != other.coins


def test_coins_and_contents_differ_from_audit_to_audit() -> None:
    task = catalogue.from_json(TASK)
    first, second = (prepare(rows(200), task, SCHEMA, 50) for _ in range(2))
    assert first.coins != second.coins
    assert not set(first.ids) & set(second.ids)
    assert 5 < sum(first.coins) < 45


def test_a_canary_has_the_target_of_another_row_and_no_row_comes_twice() -> None:
    found = prepare(rows(60), catalogue.from_json(TASK), SCHEMA, 15)
    both = pa.concat_tables(found.contents)
    assert all(
        plan != f"plan-{age}"
        for age, plan in zip(both["age"].to_pylist(), both["plan"].to_pylist(), strict=True)
    )
    assert all(
        plan == f"plan-{age}"
        for age, plan in zip(
            found.others["age"].to_pylist(), found.others["plan"].to_pylist(), strict=True
        )
    )
    ages = both["age"].to_pylist() + found.others["age"].to_pylist()
    assert sorted(ages) == list(range(60))
    assert not {"own-1"} & {*found.ids, *found.others["id"].to_pylist()}
    assert len({*found.ids, *found.others["id"].to_pylist()}) == 45


@pytest.mark.parametrize(
    "task",
    [
        TASK,
        TASK | {"inputs": [{"name": "pixels", "kind": "array", "shape": [2, 2], "dtype": "uint8"}]},
        TASK
        | {
            "inputs": [
                AGE,
                {"name": "plan", "kind": "category", "values": ["x", "y"]},
                {"name": "rent", "kind": "number", "offset": 300, "scale": 0.01},
            ],
            "target": {"column": "open", "classes": [False, True]},
        },
        {"name": "multi_label", "inputs": [CURVE], "target": {"columns": ["open"]}},
        {"name": "regression", "inputs": [AGE], "target": {"columns": ["rent"]}, "loss": "squared"},
        {"name": "language_model", "inputs": [{"name": "plan", "kind": "text", "length": 12}]},
    ],
)
def test_generated_rows_can_be_read_and_are_not_all_alike(task: dict[str, Any]) -> None:
    spec = catalogue.from_json(task)
    columns = {name: str(kind) for name, kind in SCHEMA.columns if name in spec.columns}
    found = prepare(None, spec, TableSchema.of(columns, record_id="id"), 10)
    assert found.others.num_rows == 50
    for name, values in encode(pa.concat_tables(found.contents), spec).items():
        assert len(values) == 20
        if (name, task["name"]) != ("target", "language_model"):
            assert len(np.unique(values, axis=0)) > 1


def test_what_cannot_be_made_up_must_be_brought() -> None:
    task = {
        "name": "classification",
        "inputs": [{"name": "photo", "kind": "image", "shape": [3, 8, 8]}],
        "target": CLASSES,
    }
    schema = TableSchema.of({"photo": "binary", "plan": "string"}, record_id="id")
    with pytest.raises(InvalidInputError, match="bring rows with --data"):
        prepare(None, catalogue.from_json(task), schema, 10)


def test_rows_that_do_not_fit_are_refused() -> None:
    task = catalogue.from_json(TASK)
    with pytest.raises(InvalidInputError, match="10 canaries need 40 rows"):
        prepare(rows(39), task, SCHEMA, 10)
    with pytest.raises(InvalidRecordsError, match="rent"):
        prepare(rows(40).drop_columns(["rent"]), task, SCHEMA, 10)

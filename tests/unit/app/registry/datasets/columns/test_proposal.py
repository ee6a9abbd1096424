"""What a file alone may put into a task, which is public and outlives every record."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from app.domain.columns import ArrayColumn, ImageColumn, NumberColumn, TextColumn
from app.domain.errors import InvalidInputError, InvalidRecordsError
from app.domain.schema import TableSchema
from app.domain.tasks.built_in import ClassificationSpec, LanguageModelSpec, RegressionSpec
from app.registry.datasets.columns.column_types import proposed_schema
from app.registry.datasets.columns.encoding import features_of, labels_of
from app.registry.datasets.columns.proposal import (
    LEAST_ROWS,
    Choices,
    Listed,
    Proposal,
    proposed,
)
from app.registry.datasets.columns.reading import read_source
from app.registry.datasets.columns.sources import typed_parts

Rows = tuple[TableSchema, pa.Table]


def _rows(path: Path, *, persons: int, rows: int = 60, subject_id: str | None = "person") -> Rows:
    """Return a table of two plans, one of which only a few persons have."""
    lines = [
        f"{i},p{i % persons},{'gold' if i % persons < 3 else 'basic'},{i},{'yn'[i % 2]}"
        for i in range(rows)
    ]
    (path / "t.csv").write_text("\n".join(["id,person,plan,n,out", *lines]))
    return _read(path / "t.csv", subject_id=subject_id)


def _read(file: Path, *, subject_id: str | None = "person") -> Rows:
    source = read_source(file)
    drop = () if subject_id else ("person",)
    schema = proposed_schema(source, record_id="id", subject_id=subject_id, drop=drop)
    return schema, pa.concat_tables([each.records for each in typed_parts(source, schema)])


def _proposal(rows: Rows, **choices: Any) -> Proposal:
    schema, table = rows
    return proposed(schema, Choices(**({"target": "out"} | choices)), table)


def _inputs(found: Proposal) -> tuple[Any, ...]:
    return found.task.inputs.columns


def test_a_value_of_few_persons_is_never_listed_by_itself(tmp_path: Path) -> None:
    rows = _rows(tmp_path, persons=30)
    assert 3 < rows[1]["plan"].to_pylist().count("gold") < LEAST_ROWS

    found = _proposal(rows)

    _, plan = _inputs(found)
    assert (plan.name, plan.values, plan.other) == ("plan", ("basic",), True)
    assert found.unconfirmed == ["plan", "out"]
    # Counted by rows, or by persons with several rows each.
    assert _inputs(_proposal(_rows(tmp_path, persons=30, subject_id=None)))[1] == plan
    twice = _rows(tmp_path, persons=15, rows=90)
    assert twice[1]["plan"].to_pylist().count("gold") >= LEAST_ROWS
    assert _inputs(_proposal(twice))[1] == plan


def test_a_number_of_few_persons_is_no_class_by_itself(tmp_path: Path) -> None:
    lines = [f"{i},p{i},{i},{93517 if i == 7 else 20 + i % 2}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["id,person,n,out", *lines]))
    rows = _read(tmp_path / "t.csv")
    with pytest.raises(InvalidRecordsError, match="'out': values of fewer than 10 persons; name"):
        _proposal(rows)
    assert _proposal(rows, classes=("20", "21", "93517")).unconfirmed == []
    (tmp_path / "t.csv").write_text("\n".join(["id,person,n,out", *lines[8:]]))
    found = _proposal(_read(tmp_path / "t.csv"))
    assert found.task.names == (20, 21)
    assert found.unconfirmed == ["out"]


@pytest.mark.parametrize(("least", "is_class"), [(2**53 - 5, True), (2**53, False)])
def test_whole_numbers_that_float64_does_not_tell_apart_are_no_classes(
    least: int, is_class: bool, tmp_path: Path
) -> None:
    lines = [f"{i},p{i},{i},{least + i % 4}" for i in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["id,person,n,out", *lines]))
    found = _proposal(_read(tmp_path / "t.csv"))
    assert isinstance(found.task, ClassificationSpec) == is_class


def test_what_the_user_lists_needs_no_confirmation(tmp_path: Path) -> None:
    listed = Listed(values=("basic", "gold"), other=False)
    found = _proposal(_rows(tmp_path, persons=30), categories={"plan": listed}, classes=("y", "n"))

    assert found.unconfirmed == []
    assert _inputs(found)[1].values == ("basic", "gold")
    assert found.task.names == ("y", "n")


def test_predictions_need_the_inputs_only(tmp_path: Path) -> None:
    schema, rows = _rows(tmp_path, persons=30)
    task = _proposal((schema, rows)).task
    assert isinstance(task, ClassificationSpec)

    features = features_of(rows.select(["plan", "n"]), task.inputs)

    assert features.tolist() == features_of(rows, task.inputs).tolist()
    assert features.shape == (60, task.inputs.width)
    assert labels_of(rows, task.target).tolist() == [1, 0] * 30


def test_free_text_is_no_category(tmp_path: Path) -> None:
    lines = [f"{i},p{i},word {i},{i % 2}" for i in range(300)]
    (tmp_path / "t.csv").write_text("\n".join(["id,person,note,out", *lines]))
    rows = _read(tmp_path / "t.csv")

    (note,) = _inputs(_proposal(rows))

    assert note == TextColumn(name="note", length=256)
    with pytest.raises(InvalidRecordsError, match="'note': 300 different values; name the public"):
        _proposal(rows, target="note")


def test_numbers_are_brought_to_about_one_by_rounded_constants(tmp_path: Path) -> None:
    lines = [f"{i},p{i},{18 + i % 73},{1000 + 13 * i}" for i in range(400)]
    (tmp_path / "t.csv").write_text("\n".join(["id,person,age,out", *lines]))
    rows = _read(tmp_path / "t.csv")

    found = _proposal(rows)

    assert _inputs(found) == (NumberColumn(name="age", offset=50, scale=0.02, missing=50),)
    assert isinstance(found.task, RegressionSpec)
    assert (found.task.offset, found.task.scale, found.task.loss) == (4000, 0.0002, "huber")
    assert found.unconfirmed == ["age", "out"]
    given = _proposal(rows, bounds={"age": (18.0, 98.0)})
    assert _inputs(given) == (NumberColumn(name="age", low=18, high=98, missing=58),)
    assert given.unconfirmed == ["out"]

    curve = NumberColumn(name="age", knots=(-25, 12.5, 50, 87.5, 125), missing=50)
    assert _inputs(_proposal(rows, splines=True)) == (curve,)
    curve = NumberColumn(name="age", knots=(18, 38, 58, 78, 98), missing=58)
    between = _proposal(rows, splines=True, bounds={"age": (18.0, 98.0)})
    assert (_inputs(between), between.unconfirmed) == ((curve,), ["out"])
    with pytest.raises(InvalidInputError, match="--splines: no input is a number"):
        proposed(rows[0], Choices(target="out", regression=True, splines=True))


@pytest.mark.parametrize(("persons", "flagged"), [(9, False), (10, True)])
def test_that_a_number_is_missing_is_told_apart_if_enough_persons_have_none(
    tmp_path: Path, persons: int, *, flagged: bool
) -> None:
    lines = [f"{i},p{i // 2},{'' if i < 2 * persons else i % 9},{i % 2}" for i in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["id,person,age,out", *lines]))

    (age,) = _inputs(_proposal(_read(tmp_path / "t.csv")))

    assert (age.missing, age.flag_missing) == (age.offset, flagged)


COLUMNS = TableSchema.of(
    {
        "age": "int16?",
        "digits": "list<uint8, 64>",
        "member": "bool",
        "note": "string",
        "photo": "binary",
        "price": "float64",
        "since": "date",
        "tokens": "list<int32>",
    },
    record_id="id",
)


def _of_columns(target: str | None, *features: str, **choices: Any) -> Proposal:
    return proposed(COLUMNS, Choices(target=target, features=features, **choices))


def test_without_rows_the_types_say_what_they_can() -> None:
    found = _of_columns("member", "age", "price")
    age = NumberColumn(name="age", missing=0, flag_missing=True)
    assert _inputs(found) == (age, NumberColumn(name="price"))
    assert found.task.names == (False, True)
    assert isinstance(_of_columns("price", "age").task, RegressionSpec)
    (photo,) = _inputs(_of_columns("member", "photo", shapes={"photo": (1, 8, 8)}))
    assert photo == ImageColumn(name="photo", shape=(1, 8, 8))
    (digits,) = _inputs(
        _of_columns("member", "digits", bounds={"digits": (0, 16)}, shapes={"digits": (8, 8)})
    )
    assert digits == ArrayColumn(name="digits", shape=(8, 8), dtype="uint8", scale=0.0625)
    texts = _of_columns(None, "tokens", vocabulary=99, shapes={"tokens": (16,)})
    assert texts.task == LanguageModelSpec(inputs=texts.task.inputs)
    assert _of_columns("age", "price", class_count=100).task.outputs == 100


@pytest.mark.parametrize(
    ("target", "features", "choices", "words"),
    [
        ("gone", (), {}, "'gone': the dataset has no such column"),
        ("since", ("age",), {}, "'since': date, which cannot be a target"),
        ("member", ("since",), {}, "'since': dates or times; leave it out with --drop 'since'"),
        ("member", ("photo", "age"), {}, "'photo': bytes, which are read alone"),
        ("member", ("note", "age"), {}, "'note': text: name a file of rows with --data"),
        ("member", ("tokens",), {}, "'tokens': lists of any length; tell it with --shape"),
        ("member", ("note",), {"bounds": {"note": (0, 1)}}, "'note': is read as a text, which"),
        ("member", ("digits",), {"missing": {"digits": "0"}}, "an array, which takes no --missing"),
        ("age", ("price",), {}, "'age': whole numbers; name the classes with --classes, or"),
        ("note", ("price",), {}, "'note': name the public classes with --classes, or a file"),
        ("note", ("price",), {"regression": True}, "'note': string, where a number is expected"),
    ],
)
def test_a_column_that_cannot_be_read_is_named_with_what_to_do(
    target: str, features: tuple[str, ...], choices: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRecordsError, match=words):
        _of_columns(target, *features, **choices)


def test_what_is_to_be_learned_must_be_said() -> None:
    with pytest.raises(InvalidInputError, match="--target"):
        _of_columns(None, "age")

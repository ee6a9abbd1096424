"""Schemas: numbers with their scale, or tokens with their vocabulary."""

import pytest

from app.domain.errors import InvalidInputError
from app.domain.schema import MOST_COLUMNS, SCALARS, ColumnType, InputSchema, TableSchema

SCHEMA = {"shape": (6,), "dtype": "float32", "offset": 0.0, "scale": 1.0, "classes": 2}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_tokens_have_a_vocabulary(dtype):
    schema = InputSchema(**{**SCHEMA, "dtype": dtype, "vocabulary": 5000})
    assert schema.tokens
    assert not InputSchema(**SCHEMA).tokens


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "int64"}, "without a vocabulary"),
        ({"vocabulary": 10}, "with a vocabulary"),
        ({"dtype": "uint8", "vocabulary": 10}, "int32, int64 with a vocabulary"),
        ({"dtype": "int32", "vocabulary": 1}, "between 2 and 10,000,000"),
        ({"dtype": "int32", "vocabulary": 10_000_001}, "between 2 and 10,000,000"),
        ({"dtype": "int64", "vocabulary": 9, "scale": 0.5}, "no inputs.offset"),
        ({"dtype": "int64", "vocabulary": 9, "offset": 1.0}, "no inputs.offset"),
    ],
)
def test_what_contradicts_itself_is_refused(changes, words):
    with pytest.raises(InvalidInputError, match=words):
        InputSchema(**{**SCHEMA, **changes})


LISTS = ("list<int32>", "list<string>", "list<float32, 128>", "list<uint8, 784>")


@pytest.mark.parametrize("text", [*SCALARS, *LISTS])
@pytest.mark.parametrize("mark", ["", "?"])
def test_a_type_is_written_as_it_was_read(text: str, mark: str) -> None:
    kind = ColumnType.parse(text + mark)
    assert str(kind) == text + mark
    assert kind.nullable is bool(mark)


def test_spaces_do_not_count() -> None:
    assert str(ColumnType.parse(" list< float32 ,128 > ? ")) == "list<float32, 128>?"


@pytest.mark.parametrize(
    "text",
    [
        *("", "?", "int", "int128", "Int8", "int8??", "list", "list<>", "list<binary>"),
        *(
            "list<list<int8>>",
            "list<string, 3>",
            "list<bool, 3>",
            "list<int8, 0>",
            "list<int8, -1>",
        ),
        *("list<float64, 2097153>", "list<int8, ٣>", "decimal", "list<timestamp>", "string;"),
    ],
)
def test_other_types_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        ColumnType.parse(text)


def test_the_order_of_columns_does_not_count() -> None:
    one = TableSchema.of({"a": "int8", "b": "string"}, record_id="id")
    other = TableSchema.of({"b": "string", "a": "int8"}, record_id="id")
    assert one == other
    assert TableSchema.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("columns", "ids", "reason"),
    [
        ({}, ("id", None), "1 to 1000"),
        ({str(i): "int8" for i in range(MOST_COLUMNS + 1)}, ("id", None), "1 to 1000"),
        ({"id": "string"}, ("id", None), "keyed hashes"),
        ({"who": "string"}, ("id", "who"), "keyed hashes"),
        ({"a": "int8"}, ("id", "id"), "different"),
        ({"a": "int8"}, ("", None), "printable"),
        ({"": "int8"}, ("id", None), "printable"),
        ({"a\0": "int8"}, ("id", None), "printable"),
        ({"a" * 513: "int8"}, ("id", None), "printable"),
        ({"a": "strnig"}, ("id", None), "'a' must be one of"),
    ],
)
def test_impossible_schemas_are_refused(
    columns: dict[str, str], ids: tuple[str, str | None], reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        TableSchema.of(columns, record_id=ids[0], subject_id=ids[1])


ALTERED = TableSchema.of(
    {"age": "int16", "code": "uint8?", "name": "string", "share": "float32", "list": "list<int8>"},
    record_id="id",
    subject_id="who",
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("age", kind) for kind in ("int16", "int16?", "int32", "int64?", "float64", "float64?")),
        *(("code", kind) for kind in ("int16?", "uint16?", "uint64?", "float64?")),
        *(
            ("name", "string?"),
            ("share", "float64"),
            ("share", "float32?"),
            ("list", "list<int8>?"),
        ),
        *(("new", "string?"), ("new", "list<float32, 3>?")),
    ],
)
def test_columns_are_added_and_widened(name: str, kind: str) -> None:
    altered = ALTERED.altered({name: kind})
    assert altered.to_json()["columns"] == ALTERED.to_json()["columns"] | {name: kind}
    assert altered.altered({name: kind}) == altered


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("age", "int8", "'age' is int16, and cannot become int8, but int32, int64, float64, int16"),
        ("age", "uint32", "'age' is int16, and cannot become uint32"),
        ("age", "float32", "cannot become float32"),
        ("age", "string", "cannot become string"),
        ("code", "uint8", "is uint8[?], and cannot become uint8, but int16[?], int32[?], int64[?]"),
        ("code", "int8?", "cannot become int8[?]"),
        ("name", "binary", "'name' is string, and cannot become binary, but string[?]$"),
        ("share", "float16", "but float64, float32[?], float64[?]$"),
        ("list", "list<int16>", "but list<int8>[?]$"),
        ("new", "int8", "'new' is new, and stored records have no value: make it int8[?]"),
        ("id", "string?", "'id' holds ids"),
        ("who", "string?", "'who' holds ids"),
    ],
)
def test_other_alterations_are_refused_by_column(name: str, kind: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        ALTERED.altered({name: kind})


def test_what_may_have_no_value_has_nothing_narrower_to_become() -> None:
    schema = TableSchema.of({"name": "string?"}, record_id="id")
    with pytest.raises(InvalidInputError, match="cannot become string, but nothing else"):
        schema.altered({"name": "string"})

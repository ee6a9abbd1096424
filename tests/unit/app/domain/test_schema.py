"""Schemas: numbers with their scale, or tokens with their vocabulary."""

import pytest

from app.domain.errors import InvalidInputError
from app.domain.schema import InputSchema

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

"""JSON that could be read in two ways is not read at all."""

import json

import pytest

from app.domain import strict_json


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '[{"b": {"a": 1, "c": 2, "a": 3}}]',
        '{"a": 1, "\\u0061": 2}',
        "NaN",
        '{"a": [Infinity]}',
        "-Infinity",
        "1e999",
        "-1e999",
        "{",
        "",
        "9" * 10_000,
        b"\xff",
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        strict_json.loads(text)


@pytest.mark.parametrize("value", [{"a": {"a": 1}}, [1, 1.5, None, True, "x"], 1e-320, -0.0, 2**70])
def test_what_is_read_as_ever(value: object) -> None:
    assert strict_json.loads(json.dumps(value)) == value
    assert strict_json.loads(json.dumps(value).encode()) == value

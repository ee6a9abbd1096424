"""Stated and computed values: where they differ, and how little may."""

import math
from typing import Any

import pytest

from app.evidence.certificates.checks.guarantee import difference

COMPUTED = {"a": 1.5, "b": 3, "c": [True, "x", None], "d": {"e": 0.0}}


def test_equal_values_have_no_difference() -> None:
    assert difference(COMPUTED, COMPUTED, "top") is None
    assert difference(COMPUTED | {"a": 1.5 * (1 + 5e-10)}, COMPUTED, "top") is None
    assert difference(2, 2.0, "whole") is None


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"a": 1.5 * (1 + 2e-9)}, "top.a"),
        ({"a": 1.5 * (1 - 2e-9)}, "top.a"),
        ({"a": math.nan}, "top.a"),
        ({"a": math.inf}, "top.a"),
        ({"a": True}, "top.a"),
        ({"a": "1.5"}, "top.a"),
        ({"a": 10**400}, "top.a"),
        ({"b": 3.0}, "top.b"),
        ({"b": True}, "top.b"),
        ({"b": 4}, "top.b"),
        ({"c": [True, "x"]}, "top.c"),
        ({"c": [1, "x", None]}, "top.c.0"),
        ({"c": [True, "y", None]}, "top.c.1"),
        ({"c": [True, "x", 0]}, "top.c.2"),
        ({"c": "x"}, "top.c"),
        ({"d": {"e": 1e-300}}, "top.d.e"),
        ({"d": {"e": 0.0, "f": 1}}, "top.d"),
        ({"d": {}}, "top.d"),
        ({"d": None}, "top.d"),
    ],
    ids=str,
)
def test_a_difference_is_named_by_its_place(change: dict[str, Any], where: str) -> None:
    assert difference(COMPUTED | change, COMPUTED, "top") == where


def test_what_was_computed_and_is_no_number_equals_nothing() -> None:
    assert difference(math.inf, math.inf, "x") == "x"
    assert difference(math.nan, math.nan, "x") == "x"

"""Numbers and objects of definitions: whatever JSON can hold, a wrong one is named."""

import pytest

from app.domain.architectures import ArchitectureSpec
from app.domain.checks import is_number, known_fields
from app.domain.errors import InvalidInputError


@pytest.mark.parametrize("number", [0, 0.5, 10**300, -1.0, 1e308])
def test_numbers_that_a_float_reaches_are_numbers(number: float) -> None:
    assert is_number(number)


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), float("nan"), float("inf"), True, "1", None]
)
def test_other_values_are_none(value: object) -> None:
    assert not is_number(value)


@pytest.mark.parametrize(
    ("name", "option"),
    [("linear_head", "bias"), ("linear_head", "feature_norm"), ("ridge_head", "feature_range")],
)
@pytest.mark.parametrize("number", [10**400, -1.0, float("nan"), True, "1"])
def test_an_option_out_of_its_range_is_named(name: str, option: str, number: object) -> None:
    with pytest.raises(InvalidInputError, match=f"{option} must be a number"):
        ArchitectureSpec.from_json({"name": name, "options": {option: number}})


def test_fields_are_those_that_are_known() -> None:
    assert known_fields({"a": 1}, "task", ("a", "b")) == {"a": 1}
    with pytest.raises(InvalidInputError, match=r"task: unknown field 'c'; known are a, b"):
        known_fields({"a": 1, "c": 2, "d": 3}, "task", ("b", "a"))
    with pytest.raises(InvalidInputError, match="task: must be an object"):
        known_fields([("a", 1)], "task", ("a",))

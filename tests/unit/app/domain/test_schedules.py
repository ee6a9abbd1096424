"""Parameters of a mechanism: one number, or one for each step."""

import pytest

from app.domain.errors import ParameterError
from app.domain.schedules import (
    MAX_SCHEDULE_STEPS,
    at,
    from_json,
    require_schedules,
    to_json,
    until,
)


def test_lists_become_tuples_and_json_gets_them_back() -> None:
    document = {"steps": 3, "noise_std": [3, 2.5, 2.0], "initial_clip": 1.0}

    parameters = require_schedules(document)

    assert parameters == {"steps": 3, "noise_std": (3, 2.5, 2.0), "initial_clip": 1.0}
    assert to_json(parameters) == document
    assert from_json(document) == parameters


def test_a_number_holds_for_every_step_and_a_schedule_for_its_own() -> None:
    assert [at(0.5, 0), at(0.5, 7), at((1.0, 2.0), 1)] == [0.5, 0.5, 2.0]
    parameters = {"noise_std": (1.0, 2.0, 3.0), "initial_clip": 0.5}
    assert until(parameters, 2) == {"noise_std": (1.0, 2.0), "initial_clip": 0.5}


def test_what_is_no_schedule_passes_through_json_and_cutting() -> None:
    parameters = {"ledger": {"events": [{"steps": 9}, {"steps": 3}]}, "neighbours": "zero_out"}

    assert to_json(parameters) == from_json(parameters) == until(parameters, 1) == parameters


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        "1.0",
        {},
        [],
        float("nan"),
        float("inf"),
        10**400,
        [1.0, True],
        [1.0, None],
        [1.0, "2.0"],
        [1.0, [2.0]],
        [1.0, float("nan")],
        [1.0, 10**400],
        [1.0] * (MAX_SCHEDULE_STEPS + 1),
    ],
    ids=lambda value: str(value)[:12],
)
def test_anything_else_is_refused_by_name(value: object) -> None:
    with pytest.raises(ParameterError, match="noise_std must be"):
        require_schedules({"noise_std": value})

"""What a certificate says of its lineage must follow from the ledger that it carries."""

from copy import deepcopy
from typing import Any

import pytest

from app.accounting.drift import DriftLedger, Recipe
from app.certificates.ledger_check import MAX_BATCHES, MAX_EVENTS, check_ledger
from app.domain.errors import ParameterError

RECIPE = Recipe(
    learning_rate=0.5,
    weight_decay=0.01,
    smoothness=0.25,
    lipschitz=1.0,
    batch_size=10,
    batches=20,
)
HISTORY = DriftLedger(RECIPE).after_steps(100).after_request({3: 2}).after_steps(7)
CONSTANTS = {"learning_rate": 0.5, "weight_decay": 0.01, "smoothness": 0.25}
RELEASE = {
    "parameters": {**CONSTANTS, "drift": HISTORY.drift(), "noise_std": 0.1, "steps": 3},
    "ledger": HISTORY.to_json(),
}
DESCENT = {
    "parameters": {
        **CONSTANTS,
        "lipschitz": 1.0,
        "records": 10,
        "forgotten": 2,
        "training_steps": 107,
    },
    "ledger": HISTORY.to_json(),
}


@pytest.mark.parametrize("mechanism", [RELEASE, DESCENT, {"parameters": {"noise_std": 1.0}}])
def test_what_follows_from_the_ledger_passes(mechanism: dict[str, Any]) -> None:
    check_ledger(mechanism)


@pytest.mark.parametrize(
    ("mechanism", "name", "value"),
    [
        (RELEASE, "drift", 0.999 * HISTORY.drift()),
        (RELEASE, "drift", float("nan")),
        (RELEASE, "learning_rate", 0.25),
        (RELEASE, "weight_decay", 0.02),
        (RELEASE, "smoothness", 0.2),
        (DESCENT, "lipschitz", 0.5),
        (DESCENT, "forgotten", 1),
        (DESCENT, "records", 11),
        (DESCENT, "training_steps", 106),
        (DESCENT, "training_steps", 108),
    ],
)
def test_what_does_not_follow_is_refused_by_name(
    mechanism: dict[str, Any], name: str, value: float
) -> None:
    changed = deepcopy(mechanism)
    changed["parameters"][name] = value
    with pytest.raises(ParameterError, match=name):
        check_ledger(changed)


@pytest.mark.parametrize("mechanism", [RELEASE, DESCENT])
@pytest.mark.parametrize(
    "ledger",
    [
        None,
        [],
        {},
        {**HISTORY.to_json(), "batches": MAX_BATCHES + 1},
        {**HISTORY.to_json(), "batches": "20"},
        {**HISTORY.to_json(), "events": [{"steps": 1}] * (MAX_EVENTS + 1)},
        {**HISTORY.to_json(), "events": [{"steps": 10**12}]},
        {**HISTORY.to_json(), "events": "steps"},
    ],
)
def test_a_missing_or_unreasonable_ledger_is_refused(
    mechanism: dict[str, Any], ledger: object
) -> None:
    with pytest.raises(ParameterError):
        check_ledger({**mechanism, "ledger": ledger})


def test_a_history_among_the_parameters_has_the_same_limits() -> None:
    vast = {**HISTORY.to_json(), "batches": MAX_BATCHES + 1}
    with pytest.raises(ParameterError):
        check_ledger({"parameters": {"noise_std": 0.1, "ledger": vast}})

"""What a lineage remembers goes into a database as JSON and comes back as it was."""

import json

import pytest

from app.accounting.drift import DriftLedger, Recipe
from app.domain.errors import ParameterError
from app.planning.tracking import Tracking

LEDGER = (
    DriftLedger(
        Recipe(
            learning_rate=1.3,
            weight_decay=0.01,
            smoothness=0.5,
            lipschitz=1.5,
            batch_size=4,
            batches=3,
            radius=2.0,
        )
    )
    .after_steps(10)
    .after_request({0: 1, 2: 3})
    .after_steps(1)
)


@pytest.mark.parametrize("ledger", [None, LEDGER], ids=["no drift", "drift"])
def test_tracking_comes_back_from_json_as_it_was(ledger: DriftLedger | None) -> None:
    tracking = Tracking("tracked_release", 7, settings={"training_steps": 10.0}, ledger=ledger)
    found = Tracking.from_json(json.loads(json.dumps(tracking.to_json())))
    assert found == tracking
    if ledger is not None:
        assert found.ledger.drift() == ledger.drift() > 0


def test_a_ledger_that_was_tampered_with_is_refused() -> None:
    document = Tracking("tracked_release", 0, ledger=LEDGER).to_json()
    document["ledger"]["events"][1] = {"forget": [[3, 1]]}
    with pytest.raises(ParameterError):
        Tracking.from_json(document)

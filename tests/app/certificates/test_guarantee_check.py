"""A certificate is checked with the version of the accountant that it states."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from app.accounting import catalogue, dp_sgd
from app.certificates.guarantee_check import check_guarantee
from app.domain.errors import VerificationError

BUNDLE = Path(__file__).parents[2] / "golden/v1/dp_sgd.certificate.json"
# Here the first version says twice the epsilon of the second.
TRAINING = {"noise_multiplier": 5.0, "sampling_rate": 0.001, "steps": 10_000, "group_size": 1}


def _payload(found: Any) -> str | None:
    if isinstance(found, dict):
        if isinstance(found.get("payload"), str):
            return str(found["payload"])
        found = list(found.values())
    inner = (_payload(one) for one in found) if isinstance(found, list) else ()
    return next((one for one in inner if one is not None), None)


def _stating(*, version: int, of_version: int) -> dict[str, Any]:
    """Return a predicate that states one version and the numbers of another."""
    payload = _payload(json.loads(BUNDLE.read_text()))
    assert payload is not None
    predicate: dict[str, Any] = json.loads(base64.b64decode(payload))["predicate"]
    guarantee = catalogue.account(dp_sgd.NAME, TRAINING, version=of_version)
    predicate["mechanism"]["parameters"] = TRAINING
    predicate["guarantee"]["epsilon"] = guarantee.epsilon(delta=predicate["guarantee"]["delta"])
    predicate["guarantee"]["attacker_advantage"] = guarantee.advantage()
    predicate["accountant"]["version"] = version
    return predicate


@pytest.mark.parametrize("version", [1, 2])
def test_each_version_is_confirmed_by_itself(version: int) -> None:
    assert "as recomputed" in check_guarantee(_stating(version=version, of_version=version))


def test_the_first_version_does_not_confirm_what_only_the_second_says() -> None:
    with pytest.raises(VerificationError, match="too small"):
        check_guarantee(_stating(version=1, of_version=2))


def test_of_an_unknown_version_the_present_one_is_asked() -> None:
    assert "as recomputed" in check_guarantee(_stating(version=99, of_version=2))


def test_a_version_that_is_no_number_cannot_be_read() -> None:
    predicate = _stating(version=2, of_version=2)
    predicate["accountant"]["version"] = []
    with pytest.raises(VerificationError, match="cannot be read"):
        check_guarantee(predicate)

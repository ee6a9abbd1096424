import pytest

from app.accounting import catalogue
from tests.app.accounting.mutations import MUTATIONS, caught_by


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_one_per_cent_of_optimism_is_caught(mutation):
    test = caught_by(mutation)
    print(f"{mutation}: caught by {test}")
    assert test is not None


def test_every_accountant_is_mutated():
    mutated = {mutation.target.removeprefix("published.") for mutation in MUTATIONS}
    for name, module in catalogue.ACCOUNTANTS.items():
        if name != "retraining":
            assert f"{name}.account" in mutated
            assert not hasattr(module, "calibrate") or f"{name}.calibrate" in mutated

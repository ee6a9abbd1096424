import pytest

from app.accounting import (
    dp_sgd,
    gradient_clipping,
    model_clipping,
    noisy_gd_nonconvex,
    output_perturbation,
)
from app.accounting.catalogue import PUBLISHED
from tests.unit.app.accounting.mutations import MUTATIONS, caught_by

ACCOUNTANTS = (
    gradient_clipping,
    output_perturbation,
    model_clipping,
    noisy_gd_nonconvex,
    dp_sgd,
)


# Every fourth is tried by `make test`, and the rest by `make test-slow`.
TRIED = [
    pytest.param(mutation, id=str(mutation), marks=pytest.mark.slow if at % 4 else ())
    for at, mutation in enumerate(MUTATIONS)
]


@pytest.mark.parametrize("mutation", TRIED)
def test_one_per_cent_of_optimism_is_caught(mutation):
    test = caught_by(mutation)
    print(f"{mutation}: caught by {test}")
    assert test is not None


def test_every_accountant_is_mutated():
    mutated = {mutation.target for mutation in MUTATIONS}
    for module in ACCOUNTANTS:
        assert f"{module.NAME}.account" in mutated
        assert not hasattr(module, "calibrate") or f"{module.NAME}.calibrate" in mutated
    bounds = {target for target in mutated if target.startswith("published.")}
    assert len(bounds) == len(PUBLISHED)

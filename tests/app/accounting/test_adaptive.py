import math

import pytest

from app.accounting import adaptive
from app.accounting.guarantees import (
    ExactGuarantee,
    GaussianGuarantee,
    PointGuarantee,
    RenyiGuarantee,
)
from app.accounting.retraining import TERMS
from app.domain.errors import ParameterError

DELETION = GaussianGuarantee(terms=TERMS, mu=0.3)
PRESENT = GaussianGuarantee(terms=TERMS, mu=0.4)


def test_gaussian_guarantees_compose_in_squares():
    found = adaptive.compose(deletion=DELETION, present=PRESENT, earlier_releases=1)
    assert found.mu == pytest.approx(0.5, rel=1e-14)
    nine = adaptive.compose(deletion=DELETION, present=PRESENT, earlier_releases=9)
    assert nine.mu == pytest.approx(math.sqrt(0.09 + 9 * 0.16), rel=1e-14)


def test_without_earlier_releases_nothing_is_lost():
    found = adaptive.compose(deletion=DELETION, present=PRESENT, earlier_releases=0)
    assert found.mu == pytest.approx(0.3, rel=1e-14)


def test_renyi_guarantees_add():
    first = RenyiGuarantee(terms=TERMS, curve=lambda order: 0.1 * order, highest_order=50.0)
    second = RenyiGuarantee(terms=TERMS, curve=lambda order: 0.02 * order)
    found = adaptive.compose(deletion=first, present=second, earlier_releases=3)
    assert found.curve(2.0) == pytest.approx(0.32)
    assert found.highest_order == 50.0


def test_mixed_forms_meet_in_renyi_form():
    second = RenyiGuarantee(terms=TERMS, curve=lambda order: 0.02 * order)
    found = adaptive.compose(deletion=DELETION, present=second, earlier_releases=2)
    assert found.curve(3.0) == pytest.approx(3 * 0.045 + 2 * 0.06)


def test_exact_deletion_still_pays_for_what_requesters_saw():
    found = adaptive.compose(
        deletion=ExactGuarantee(terms=TERMS), present=PRESENT, earlier_releases=4
    )
    assert found.mu == pytest.approx(0.8, rel=1e-14)


def test_the_terms_say_that_requests_may_be_adaptive():
    found = adaptive.compose(deletion=DELETION, present=PRESENT, earlier_releases=2)
    assert found.terms.adaptive
    assert "Theorem 4.3" in found.terms.source
    assert len(found.terms.assumptions) == len(TERMS.assumptions) + 1


def test_refuses_guarantees_without_a_composable_form():
    point = PointGuarantee(terms=TERMS, at_epsilon=1.0, at_delta=1e-5)
    with pytest.raises(ParameterError) as caught:
        adaptive.compose(deletion=point, present=PRESENT, earlier_releases=1)
    assert caught.value.name == "deletion"
    with pytest.raises(ParameterError) as caught:
        adaptive.compose(deletion=DELETION, present=point, earlier_releases=1)
    assert caught.value.name == "present"


@pytest.mark.parametrize("bad", [-1, 0.5, True])
def test_refuses_a_count_that_is_none(bad):
    with pytest.raises(ParameterError) as caught:
        adaptive.compose(deletion=DELETION, present=PRESENT, earlier_releases=bad)
    assert caught.value.name == "earlier_releases"

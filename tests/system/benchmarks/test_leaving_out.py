"""The benchmark of leaving members out, on small data."""

from dataclasses import replace

import pytest

from benchmarks import ensembles_cases
from benchmarks.leaving_out import WAYS, asked, lived

MEMBERS = 16


@pytest.fixture(scope="module")
def years():
    case = ensembles_cases.digits(public=False)
    return lived(replace(case, recipe=replace(case.recipe, epochs=1)), MEMBERS, days=20)[0]


def expected(part):
    """Return how many members a refill trains, over the requests after which so many are out."""
    out = int(part * MEMBERS)
    return out / sum(MEMBERS / (MEMBERS - each) for each in range(out))


@pytest.mark.parametrize("part", [1 / 4, 1 / 2, 7 / 8])
def test_a_refill_costs_what_coupons_say_and_nobody_waits(years, part):
    year = next(years[name] for name, way in WAYS.items() if way.refill_at == part)
    assert year.waited == 0
    ratio = year.gradients / years["one member each"].gradients
    assert ratio == pytest.approx(expected(part), rel=0.15)


def test_a_training_of_all_costs_all_members_and_each_way_answers_the_same_requests(years):
    whole, singly = years["all members each"], years["one member each"]
    assert whole.gradients == pytest.approx(MEMBERS * singly.gradients, rel=0.1)
    assert {(year.answered, len(year.scores)) for year in years.values()} == {(400, 20)}


def test_below_half_of_the_members_a_request_waits_for_the_fewest():
    way, out = WAYS["left out, refilled at night"], set()
    assert [len(asked(way, member, out, 8)) for member in range(6)] == [0, 0, 0, 0, 1, 1]
    assert len(out) == 4

"""The benchmark of ensembles, on small digits."""

import pytest

from benchmarks.data import load
from benchmarks.ensembles import cases


def test_a_request_costs_one_member_and_a_hundred_cost_what_is_expected():
    scratch, public = cases(load("digits"))
    for case, least in ((scratch, 0.8), (public, 0.8)):
        row = case.row(4)
        assert row.each == pytest.approx(1 / 4, rel=0.1)
        assert row.together == pytest.approx(row.expected, rel=0.05)
        assert row.accuracy > least
        assert row.after > least

"""The ten-class benchmark on small digits, raw and behind a backbone."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.convex_runs import combined, figure, table
from benchmarks.data import load
from benchmarks.multiclass_head import COMPARISON, one_seed, public_half

SMALL = replace(COMPARISON, requests=2, records=2, sweep=(0.05, 0.1))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXPUNGE_BENCH_DATA", str(tmp_path_factory.mktemp("empty")))
        return one_seed(0, SMALL)


def test_the_backbone_never_sees_the_records_of_the_head():
    public, private = public_half(load("digits"))
    rows = np.concatenate([part.inputs.flatten(1).numpy() for part in (public, private)])
    everything = load("digits").train.inputs.flatten(1).numpy()
    assert sorted(map(bytes, rows)) == sorted(map(bytes, everything))


def test_more_release_noise_never_costs_more_steps(tables):
    for each in tables:
        costs = [outcome.gradients for _, outcome in each["release_noise"]]
        assert costs == sorted(costs, reverse=True)


def test_table_and_picture(tables, tmp_path):
    names = ("rows", "release_noise")
    cases = [each | {name: combined([each[name]]) for name in names} for each in tables]
    document = {"data": "digits", "requests": 2, "records_per_request": 2, "cases": cases}
    assert "| backbone | tracked release | zero out |" in table(document)
    assert figure(document, tmp_path / "plot.png").stat().st_size > 0

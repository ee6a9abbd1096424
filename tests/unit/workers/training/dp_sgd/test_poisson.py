"""Poisson samples: the right rate for every record, independence, and no seed."""

import numpy as np
import pytest
import torch
from scipy import stats

from workers.training.dp_sgd.training import poisson_sample

# The statistical tests below fail by chance with probability below 1e-8 each.


@pytest.mark.parametrize("rate", [0.001, 0.064, 0.5, 0.97])
def test_every_record_is_taken_at_the_rate(rate):
    records, draws = 300_000, 20
    taken = sum(len(poisson_sample(records, rate)) for _ in range(draws))
    assert stats.binomtest(taken, records * draws, rate).pvalue > 1e-8


def test_no_record_is_preferred():
    counts = np.zeros(200)
    for _ in range(2000):
        counts[poisson_sample(200, 0.3)] += 1
    assert stats.chisquare(counts, np.full(200, counts.mean())).pvalue > 1e-8
    assert stats.binom.cdf(counts.min(), 2000, 0.3) > 1e-11
    assert stats.binom.sf(counts.max(), 2000, 0.3) > 1e-11


def test_the_size_of_a_sample_varies_as_a_binomial_does():
    sizes = np.array([len(poisson_sample(1000, 0.064)) for _ in range(3000)])
    expected = 1000 * 0.064 * 0.936
    assert expected * 0.8 < sizes.var() < expected * 1.2  # 7 standard deviations


def test_records_join_independently_of_each_other():
    joined = np.zeros((20_000, 2))
    for row in joined:
        row[poisson_sample(2, 0.5)] = 1
    assert abs(np.corrcoef(joined.T)[0, 1]) < 6 / len(joined) ** 0.5


def test_positions_are_in_order_without_repeats_and_cover_all_chunks():
    chosen = poisson_sample(400_000, 0.5)
    assert (np.diff(chosen) > 0).all()
    assert chosen[0] < 100
    assert chosen[-1] >= 399_900


@pytest.mark.parametrize(("records", "rate"), [(0, 0.5), (0, 1), (100, 1e-15), (100, 1e-300)])
def test_a_sample_may_be_empty(records, rate):
    assert poisson_sample(records, rate).tolist() == []


def test_the_rate_1_takes_all():
    assert poisson_sample(7, 1).tolist() == list(range(7))
    assert poisson_sample(3, 1.0).tolist() == [0, 1, 2]


def test_no_global_seed_repeats_a_sample():
    samples = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        samples.append(poisson_sample(1000, 0.5).tolist())
    assert samples[0] != samples[1]

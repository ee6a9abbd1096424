"""Requests without a step, against a service of their own, on small digits."""

from benchmarks import zero_step
from benchmarks.data import load


def test_requests_are_certified_without_a_step_and_the_certificates_hold():
    document = zero_step.measure(load("digits"), requests=1)

    assert document["data"] == "digits"
    assert len(document["seconds"]) == 1
    assert document["median_s"] > sum(document["phase_seconds"].values()) > 0

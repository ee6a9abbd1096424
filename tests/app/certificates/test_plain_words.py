"""A guarantee in words claims no more than its certificate."""

import math
import re

import pytest

from app.accounting.terms import Neighbours
from app.certificates.plain_words import (
    assumptions_in_words,
    guarantee_in_words,
    limits_in_words,
)

GUARANTEE = {
    "kind": "gaussian",
    "epsilon": 0.99994321,
    "delta": 1.00001e-5,
    "neighbouring_relation": "any_start",
    "adaptive": False,
    "direction": "both",
    "reference": "the same pipeline, run without the forgotten records",
    "releases_before": 0,
    "attacker_advantage": 0.1066123,
    "mu": 0.268,
    "surviving_information_bits": 0.0518201,
}


def _words(**changes: object) -> str:
    return "\n".join(guarantee_in_words({"basis": "unlearned", "guarantee": GUARANTEE | changes}))


def test_no_number_is_smaller_than_what_was_certified() -> None:
    words = _words()

    epsilon, delta = re.search(r"\(ε, δ\) = \(([\d.e-]+), ([\d.e-]+)\)", words).groups()
    (factor,) = re.search(r"e\^ε \(([\d.]+)\)", words).groups()
    (advantage,) = re.search(r"rate by at most ([\d.]+\d)", words).groups()
    (bits,) = re.search(r"at most ([\d.]+) bits", words).groups()
    for shown, certified in (
        (epsilon, 0.99994321),
        (delta, 1.00001e-5),
        (factor, math.exp(0.99994321)),
        (advantage, 0.1066123),
        (bits, 0.0518201),
    ):
        assert certified <= float(shown) <= certified * 1.001


def test_a_one_way_guarantee_does_not_speak_of_the_other_way() -> None:
    assert "the same holds with the two worlds exchanged" in _words()
    one_way = _words(direction="one_way")
    assert "the same holds" not in one_way
    assert "one direction only" in one_way


def test_adaptivity_is_claimed_only_where_it_was_accounted_for() -> None:
    assert "not adaptive" in _words()
    adaptive = _words(adaptive=True, releases_before=3)
    assert "3 earlier releases are accounted for" in adaptive
    assert "not adaptive" not in adaptive


@pytest.mark.parametrize("relation", list(Neighbours))
def test_every_relation_and_reference_is_explained(relation: Neighbours) -> None:
    words = _words(neighbouring_relation=relation, reference="the Gibbs distribution")
    assert f"`{relation}`" in words
    assert "the Gibbs distribution" in words
    assert ("weights it started from" in words) == (relation == Neighbours.ANY_START)


def test_a_model_released_as_trained_promises_nothing() -> None:
    predicate = {"basis": "released_as_trained", "guarantee": {"kind": "none"}, "scope": "scope"}

    (words,) = guarantee_in_words(predicate)

    assert "No record is protected" in words
    assert assumptions_in_words(predicate) == []
    assert not any("scope" in limit for limit in limits_in_words(predicate))


def test_whose_word_an_assumption_is_stands_beside_it() -> None:
    assumptions = [
        {"statement": "noise is Gaussian", "support": "enforced"},
        {"statement": "the backbone is public", "support": "asserted"},
    ]
    assert assumptions_in_words({"assumptions": assumptions}) == [
        "noise is Gaussian (enforced by the service's code)",
        "the backbone is public (the operator's word)",
    ]

"""A guarantee in words claims no more than its certificate."""

import math
import re
from collections.abc import Iterator
from copy import deepcopy
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.terms import Neighbours
from app.evidence.certificates.plain_words import (
    assumptions_in_words,
    guarantee_in_words,
    limits_in_words,
    promise,
)
from tests.support.statements import synthetic
from tests.support.trusted import is_trusted

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


@pytest.mark.parametrize(
    ("bound", "shown"),
    [(1e-5, "1e-05"), (1e-10, "1e-10"), (0.5, "0.5"), (1.0, "1"), (1.25e-7, "1.25e-07"), (0, "0")],
)
def test_a_number_of_up_to_four_digits_is_shown_as_it_is(bound: float, shown: str) -> None:
    """Its binary expansion may be a little more, which is not what the statement says."""
    assert f"(ε, δ) = ({shown}, {shown})" in _words(epsilon=bound, delta=bound)


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_every_number_is_rounded_up_in_decimal(bound: float) -> None:
    (shown,) = re.search(r"\(ε, δ\) = \((\S+), ", _words(epsilon=bound)).groups()
    exact, rounded = Decimal(repr(bound)), Decimal(shown)
    assert exact <= rounded < exact * (1 + Decimal("0.001"))
    digits = len(exact.normalize().as_tuple().digits)
    assert rounded == exact if digits <= 4 else rounded > exact


@given(st.floats(min_value=0.0, max_value=19.9))
def test_the_factor_is_never_too_small(epsilon: float) -> None:
    (shown,) = re.search(r"e\^ε \((\S+)\)", _words(epsilon=epsilon)).groups()
    exact = Context(prec=60).exp(Decimal(repr(epsilon)))
    assert exact <= Decimal(shown) < exact * Decimal("1.0011")


def test_an_exclusion_is_exact_in_words() -> None:
    predicate = synthetic()["exclusion"].statement["predicate"]
    (words,) = guarantee_in_words(predicate)
    assert "No gradient behind these weights read the records of this request" in words


def test_that_a_new_training_leaves_out_records_is_not_adaptive_either() -> None:
    """What it learned from depends on requests, and those on releases that had read the records."""
    predicate = synthetic()["trained_anew"].statement["predicate"]
    _, limit = guarantee_in_words(predicate)
    assert "if the requests were not chosen by looking at earlier releases" in limit
    assert predicate["assumptions"][1] == {
        "statement": "no request was chosen by looking at earlier releases of this model",
        "support": "asserted",
    }


@pytest.mark.parametrize("name", sorted(synthetic()))
def test_the_words_do_not_change_with_what_is_merely_trusted(name: str) -> None:
    """Nothing that a verifier cannot check is phrased as guaranteed."""
    predicate = synthetic()[name].statement["predicate"]
    changed = deepcopy(predicate)
    for path, value in _leaves(predicate):
        if is_trusted(".".join(("predicate", *map(str, path)))) and "backbone" not in path:
            node = changed
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = value + "x" if isinstance(value, str) else value + 1
    assert changed != predicate
    for words in (guarantee_in_words, limits_in_words, assumptions_in_words):
        assert words(changed) == words(predicate)


def test_a_promise_to_a_person_is_no_stronger_than_the_certificate() -> None:
    approximate = {"basis": "unlearned", "guarantee": GUARANTEE}
    assert promise(approximate) == (56, False)  # (1 + 0.1066) / 2, rounded up
    exact = {"kind": "exact", "adaptive": True}
    assert promise({"basis": "unlearned", "guarantee": exact}) == (None, True)
    for name, adaptive in (("exclusion", True), ("trained_anew", False)):
        assert promise(synthetic()[name].statement["predicate"]) == (None, adaptive)
    with pytest.raises(KeyError):
        promise({"basis": "released_as_trained", "guarantee": {"kind": "none"}})


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


def _leaves(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    inner = dict(enumerate(node)) if isinstance(node, list) else node
    if not isinstance(inner, dict):
        if isinstance(node, str | int | float) and not isinstance(node, bool):
            yield path, node
        return
    for key, child in inner.items():
        yield from _leaves(child, (*path, key))

"""Certificates of exact heads: the file is the head and nothing else; its arithmetic is named."""

import json
from copy import deepcopy

import numpy as np
import pytest
import safetensors.numpy

from app.domain.errors import VerificationError
from app.evidence.certificates.plain_words import guarantee_in_words, recomputable_in_words
from app.evidence.certificates.verification import check_statement
from tests.support import statements
from tests.support.mechanisms import SOLVED, TRAINED_EXACTLY
from tests.support.statements import Case, exact_case, synthetic

HEADS = ("exact_training", "sufficient_statistics")


def check(case, statement=None):
    content = json.dumps(case.statement if statement is None else statement).encode()
    return check_statement(content, weights=case.weights)


@pytest.mark.parametrize("name", HEADS)
def test_an_exact_head_is_certified_with_the_kernels_that_computed_it(name):
    case = synthetic()[name]
    check(case)
    statement = deepcopy(case.statement)
    del statement["predicate"]["software"]["arithmetic"]
    with pytest.raises(VerificationError, match="arithmetic"):
        check(case, statement)


def test_other_certificates_name_them_only_where_there_is_no_noise():
    for name, exact in (("retraining", True), ("gradient_clipping", False)):
        case = synthetic()[name]
        statement = deepcopy(case.statement)
        predicate = statement["predicate"]
        predicate["software"]["arithmetic"] = statements.ARITHMETIC
        with pytest.raises(VerificationError, match="arithmetic"):
            check(case, statement)
        predicate["recomputable"] = True
        if exact:
            check(case, statement)
            (sentence,) = recomputable_in_words(predicate)
            assert "bit for bit" in sentence
            assert "the seed" in sentence
            assert sentence.endswith(f"{statements.ARITHMETIC}.")
        else:
            with pytest.raises(VerificationError, match="noise"):
                check(case, statement)
        del predicate["software"]["arithmetic"]
        with pytest.raises(VerificationError, match=r"arithmetic|noise"):
            check(case, statement)
        predicate["recomputable"] = False
        with pytest.raises(VerificationError, match="left out where it is false"):
            check(case, statement)


@pytest.mark.parametrize(
    ("mechanism", "parameters", "shapes", "reason"),
    [
        ("sufficient_statistics", SOLVED, {"weight": (3, 4)}, "not a ridge head"),
        ("sufficient_statistics", SOLVED, {"bias": (2,), "weight": (3, 4)}, "not a ridge head"),
        ("sufficient_statistics", SOLVED, {"bias": (3,), "weight": (3,)}, "not a ridge head"),
        (
            "sufficient_statistics",
            SOLVED,
            {"bias": (3,), "memory": (9,), "weight": (3, 4)},
            "not a ridge head",
        ),
        ("exact_training", TRAINED_EXACTLY, {"bias": (3,), "weight": (3, 4)}, "not a linear head"),
        ("exact_training", TRAINED_EXACTLY, {"weight": (2, 4)}, "has 1 rows"),
    ],
)
def test_a_file_that_holds_anything_else_is_refused(mechanism, parameters, shapes, reason):
    with pytest.raises(VerificationError, match=reason):
        check(exact_case(mechanism, parameters, shapes))


def test_a_head_in_float32_is_refused():
    made = statements._unlearned(
        "sufficient_statistics",
        SOLVED,
        statements.weights_of(statements.RIDGE_HEAD, np.float32),
        epsilon=1.0,
        backbone=None,
    )
    with pytest.raises(VerificationError, match="float64"):
        check(made)


@pytest.mark.parametrize("name", HEADS)
def test_the_words_say_what_adaptive_requests_are_promised(name):
    predicate = synthetic()[name].statement["predicate"]
    assert predicate["guarantee"]["adaptive"] is True
    text = " ".join(guarantee_in_words(predicate))
    assert "never saw the forgotten records" in text
    assert "gives away, by whom else it names, is not covered" in text
    assert "only ever given the retained records" in text


@pytest.mark.parametrize(
    ("tensor", "place", "number"),
    [
        ("left", 0, 14),  # whose right sibling is another tree's
        ("left", 2, 1),  # back to where it came from
        ("left", 15, 16.5),
        ("left", 15, np.inf),
        ("left", 15, np.nan),
        ("column", 0, -1),
        ("column", 0, 0.5),
        ("column", 0, np.nan),
    ],
)
def test_trees_whose_nodes_lead_nowhere_are_refused(tensor, place, number):
    case = synthetic()["boosting"]
    check(case)
    tensors = safetensors.numpy.load(case.weights)
    tensors["left"].flat[[0, 2]] = [1, 3]
    statement = deepcopy(case.statement)

    def changed():
        weights = safetensors.numpy.save(tensors)
        statement["subject"][0]["digest"]["sha256"] = statements.digest_of(weights)
        return Case(statement, weights)

    check(changed())
    tensors[tensor].flat[place] = number
    with pytest.raises(VerificationError, match="names no column, or no node below it"):
        check(changed())

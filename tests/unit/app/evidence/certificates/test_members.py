"""A certificate's word on an ensemble's members: in the file, and beside an older certificate."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from app.domain.architectures import ArchitectureSpec
from app.domain.columns import CategoryColumn, InputColumns
from app.domain.errors import VerificationError
from app.domain.merkle import EMPTY_ROOT
from app.evidence.certificates.bundle import Growth
from app.evidence.certificates.growth import check_growth
from app.evidence.certificates.schema import Statement, read_statement
from app.evidence.certificates.verification import check_statement
from tests.support.statements import DESCRIPTION, Case, digest_of, ensemble_case, synthetic

CASE = synthetic()["sharded_retraining"]
OTHER = "ab" * 32


def changed(**members: Any) -> dict[str, Any]:
    """Return the statement with fields of members changed: ``m1={"trained_in": 1}``."""
    statement = deepcopy(CASE.statement)
    for name, fields in members.items():
        statement["predicate"]["members"][int(name[1:])] |= fields
    return statement


def checked(statement: dict[str, Any], weights: bytes = CASE.weights) -> None:
    check_statement(json.dumps(statement).encode(), weights=weights)


def read(statement: dict[str, Any]) -> Statement:
    return read_statement(json.dumps(statement).encode())[0]


def beside(old: dict[str, Any], new: dict[str, Any]) -> str:
    return check_growth(read(new), read(old), Growth(None, None), old_payload=b"")


def older(**members: Any) -> dict[str, Any]:
    """Return the first version's statement: no member was trained later."""
    statement = changed(m1={"trained_in": 1, "sha256": OTHER}, **members)
    statement["predicate"]["model"]["version"] = 1
    return statement


def test_the_case_holds_and_follows_from_the_first_version() -> None:
    checked(CASE.statement)
    assert "accounts for all" in beside(older(), CASE.statement)


NODES = {**dict.fromkeys(("column", "left", "threshold", "value"), (1, 5, 7)), "baseline": (1,)}
GROWN = replace(
    DESCRIPTION,
    architecture=ArchitectureSpec("boosted_trees", options={"trees": 5, "leaves": 4}),
    task=replace(
        DESCRIPTION.task,
        inputs=InputColumns(columns=(CategoryColumn(name="plan", values=("a", "b")),)),
    ),
)
SETS = NODES | {"categories": (1, 5, 7, 1)}


def grown(**more: Any) -> Case:
    return ensemble_case(**{"of": GROWN, "shapes": SETS, "dtype": np.float64} | more)


def test_members_are_boosted_trees_of_the_described_size() -> None:
    for case in (grown(), grown(out={0: 2})):
        checked(case.statement, case.weights)


def test_trees_without_a_record_may_come_out_as_they_were() -> None:
    later = grown().statement
    old = deepcopy(later)
    old["predicate"]["members"][1]["trained_in"] = old["predicate"]["model"]["version"] = 1
    assert "accounts for all" in beside(old, later)


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ({"dtype": np.float32}, "number and size, in float64"),
        ({"shapes": SETS | {"value": (1, 5, 8)}}, "number and size, in float64"),
        (
            {"shapes": SETS | dict.fromkeys(NODES, (3, 6, 7)) | {"baseline": (3,)}},
            "number and size",
        ),
        ({"shapes": SETS | {"memory": (1, 5, 7)}}, "not boosted trees"),
        ({"shapes": NODES}, "sets are not those of its task"),
        ({"shapes": {"weight": (2, 3)}}, "not boosted trees"),
        ({"shapes": {**{n: (2, *s[1:]) for n, s in SETS.items()}}}, "have 1 rows"),
        ({"child": 6.0}, "no node below it"),
    ],
)
def test_forged_members_are_no_such_trees(forged: dict[str, Any], why: str) -> None:
    case = grown(**forged)
    with pytest.raises(VerificationError, match=why):
        checked(case.statement, case.weights)


@pytest.mark.parametrize("member", ["m0", "m1", "m2"])
def test_a_member_is_the_file_s(member: str) -> None:
    with pytest.raises(VerificationError, match="not the stated ones"):
        checked(changed(**{member: {"sha256": OTHER}}))


def test_as_many_members_as_the_file_has() -> None:
    for change in (lambda members: members.pop(), lambda members: members.append(members[0])):
        statement = deepcopy(CASE.statement)
        change(statement["predicate"]["members"])
        with pytest.raises(VerificationError, match="not the stated ones"):
            checked(statement)


@pytest.mark.parametrize("version", [0, 3])
def test_a_member_was_trained_in_a_version_of_its_lineage(version: int) -> None:
    with pytest.raises(VerificationError, match=r"trained in no version|trained_in"):
        checked(changed(m0={"trained_in": version}))


def test_other_networks_have_no_members() -> None:
    statement = deepcopy(synthetic()["retraining"].statement)
    statement["predicate"]["members"] = CASE.statement["predicate"]["members"]
    with pytest.raises(VerificationError, match="members too many or too few"):
        checked(statement, synthetic()["retraining"].weights)
    without = deepcopy(CASE.statement)
    del without["predicate"]["members"]
    with pytest.raises(VerificationError, match="members too many or too few"):
        checked(without)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (older(m0={"sha256": OTHER}), CASE.statement, "changed without a training"),
        (older(), changed(m1={"trained_in": 1}), "changed without a training"),
        (older(), changed(m1={"sha256": OTHER}), "changed without a training"),
        (older(), changed(m0={"trained_in": 2}), "changed without a training"),
        (changed(m0={"trained_in": 2}), CASE.statement, "older than it was"),
    ],
)
def test_what_became_of_a_member_fits_its_training(
    old: dict[str, Any], new: dict[str, Any], why: str
) -> None:
    with pytest.raises(VerificationError, match=why):
        beside(old, new)


def test_an_ensemble_keeps_its_number_of_members() -> None:
    fewer = older()
    fewer["predicate"]["members"].pop()
    with pytest.raises(VerificationError, match="another number of members"):
        beside(fewer, CASE.statement)


OUT = synthetic()["left_out"]


def without(statement: dict[str, Any], place: int, member: dict[str, Any]) -> dict[str, Any]:
    """Return the statement with another word on one member."""
    said = deepcopy(statement)
    said["predicate"]["members"][place] = member
    return said


def later(statement: dict[str, Any], **forgotten: Any) -> dict[str, Any]:
    """Return the statement as of a third version."""
    said = deepcopy(statement)
    said["predicate"]["model"]["version"] = 3
    said["predicate"]["forgotten"] |= forgotten
    return said


def test_a_version_without_a_member_holds_and_follows_from_the_first() -> None:
    checked(OUT.statement, OUT.weights)
    first = older()
    first["predicate"]["base"] = OUT.statement["predicate"]["base"]
    assert "accounts for all" in beside(first, OUT.statement)


def test_a_member_that_is_out_is_not_in_the_file_and_an_active_one_is() -> None:
    active = CASE.statement["predicate"]["members"][2]
    for statement, weights in (
        (without(OUT.statement, 2, active), OUT.weights),
        (without(CASE.statement, 2, {"out_since": 2}), CASE.weights),
        (without(OUT.statement, 0, {"out_since": 2}), OUT.weights),
    ):
        with pytest.raises(VerificationError, match=r"not the stated ones|disagree|subject"):
            checked(statement, weights)


def test_the_file_says_since_when_a_member_is_out() -> None:
    for member, why in (({"out_since": 2}, "stated"), ({"out_since": 3}, "trained in no")):
        with pytest.raises(VerificationError, match=why):
            checked(without(OUT.statement, 0, member), OUT.weights)
    more = deepcopy(OUT.statement)
    more["predicate"]["members"].append({"out_since": 2})
    with pytest.raises(VerificationError, match="another ensemble"):
        checked(more, OUT.weights)
    plain = safetensors.numpy.save(safetensors.numpy.load(OUT.weights))
    said = deepcopy(OUT.statement)
    said["subject"][0]["digest"]["sha256"] = digest_of(plain)
    del said["predicate"]["base"]
    with pytest.raises(VerificationError, match="does not say which of its members are out"):
        checked(said, plain)


@pytest.mark.parametrize(
    ("member", "why"),
    [
        ({"out_since": 1}, "left out of the version that began its lineage"),
        ({"out_since": 3}, "trained in no version"),
        ({}, "neither an active member"),
        ({"sha256": OTHER}, "neither an active member"),
        ({"out_since": 2, "sha256": OTHER, "trained_in": 1}, "neither an active member"),
    ],
)
def test_what_no_member_can_be(member: dict[str, Any], why: str) -> None:
    with pytest.raises(VerificationError, match=why):
        checked(without(OUT.statement, 2, member), OUT.weights)


def test_one_member_at_least_is_active_and_none_is_out_for_nothing() -> None:
    nobody, for_nothing = deepcopy(OUT.statement), deepcopy(OUT.statement)
    nobody["predicate"]["members"] = [{"out_since": 2}] * 3
    with pytest.raises(VerificationError, match="no member is active"):
        checked(nobody, OUT.weights)
    empty = {"size": 0, "root": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    for_nothing["predicate"]["forgotten"] |= {
        "requests": 0,
        "records": 0,
        "before_training": 0,
        "covered": empty,
    }
    for_nothing["predicate"]["basis"] = "certified_release"
    with pytest.raises(VerificationError, match="no record was forgotten"):
        checked(for_nothing, OUT.weights)


REFILLED = later(without(OUT.statement, 2, {"sha256": OTHER, "trained_in": 3}))
ACTIVE = without(OUT.statement, 2, {"sha256": OTHER, "trained_in": 1})
AGAIN = later(without(OUT.statement, 2, {"out_since": 4}))
AGAIN["predicate"]["model"]["version"] = 4
AT_ONCE = later(without(OUT.statement, 2, {"out_since": 3}))


@pytest.mark.parametrize("new", [REFILLED, AGAIN, later(OUT.statement)])
def test_a_member_that_is_out_stays_so_or_is_trained_anew(new: dict[str, Any]) -> None:
    assert "accounts for all" in beside(OUT.statement, new)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            OUT.statement,
            later(without(OUT.statement, 2, {"sha256": OTHER, "trained_in": 2})),
            "training is older",
        ),
        (
            OUT.statement,
            later(without(OUT.statement, 2, {"sha256": OTHER, "trained_in": 1})),
            "training is older",
        ),
        (ACTIVE, later(OUT.statement), "absence is older"),
        (AT_ONCE, later(OUT.statement), "absence is older"),
        (OUT.statement, AT_ONCE, "no version between had trained it"),
        (OUT.statement, later(without(OUT.statement, 1, {"out_since": 2})), "absence is older"),
        (
            OUT.statement,
            later(without(OUT.statement, 0, {"sha256": OTHER, "trained_in": 1})),
            "changed without a training",
        ),
    ],
)
def test_absence_and_training_fit_the_versions(
    old: dict[str, Any], new: dict[str, Any], why: str
) -> None:
    """A member that was trained before a request, or left out before it was, is a forgery."""
    with pytest.raises(VerificationError, match=why):
        beside(old, new)


def test_no_ensemble_forgets_more_without_losing_or_training_a_member() -> None:
    old = deepcopy(CASE.statement)
    old["predicate"]["model"]["version"] = 1
    assert "accounts for all" in beside(old, CASE.statement)
    nothing = {"requests": 0, "records": 0, "covered": {"size": 0, "root": EMPTY_ROOT.hex()}}
    old["predicate"]["forgotten"] |= nothing
    with pytest.raises(VerificationError, match="no member was left out or trained anew"):
        beside(old, CASE.statement)


UNMEASURED = {"outside_the_guarantee": True, "held_out_records": 0}
SCORED = {
    "outside_the_guarantee": True,
    "held_out_records": 9,
    "held_out_loss": 0.5,
    "metrics": {"accuracy": 0.9},
    "headline": "accuracy",
}


@pytest.mark.parametrize(
    ("case", "evaluation", "why"),
    [
        ("sharded_retraining", {"not_measured": True}, "not measured"),
        ("retraining", {"not_measured": True}, "not measured"),
        ("as_trained", {"not_measured": True}, "not measured"),
        ("left_out", {"fewer_members": [{"members": 2, "score": 0.5}]}, "fewer members"),
        ("retraining", {"fewer_members": [{"members": 1, "score": 0.5}]}, "fewer members"),
    ],
)
def test_only_what_lacks_members_is_not_measured_and_less_than_it_has_is_fewer(
    case: str, evaluation: dict[str, Any], why: str
) -> None:
    given = synthetic()[case]
    statement = deepcopy(given.statement)
    known = SCORED if "fewer_members" in evaluation else UNMEASURED
    statement["predicate"]["evaluation"] = known | evaluation
    with pytest.raises(VerificationError, match=why):
        checked(statement, given.weights)


def test_a_version_that_has_trained_a_member_was_measured() -> None:
    statement = without(OUT.statement, 0, OUT.statement["predicate"]["members"][0])
    statement["predicate"]["evaluation"] = UNMEASURED | {"not_measured": True}
    statement["predicate"]["members"][0]["trained_in"] = 2
    with pytest.raises(VerificationError, match="not measured"):
        checked(statement, OUT.weights)

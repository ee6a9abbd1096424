"""A certificate's word on an ensemble's members: in the file, and beside an older certificate."""

import json
from copy import deepcopy
from typing import Any

import pytest

from app.domain.errors import VerificationError
from app.evidence.certificates.bundle import Growth
from app.evidence.certificates.growth import check_growth
from app.evidence.certificates.schema import Statement, read_statement
from app.evidence.certificates.verification import check_statement
from tests.support.statements import synthetic

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

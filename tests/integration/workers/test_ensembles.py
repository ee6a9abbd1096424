"""Ensembles: trained member by member, and only the members concerned are trained again."""

import pytest

from app.domain.architecture import ArchitectureSpec
from app.domain.ensemble import Member
from app.registry.tables import VersionRow
from tests.support.exact_heads import carry_out, head_of
from tests.support.workshop import Workshop

MEMBERS = 4
ENSEMBLE = ArchitectureSpec(
    "ensemble", members=MEMBERS, of=ArchitectureSpec("mlp", {"hidden": [3]})
)


@pytest.fixture
def workshop(services):
    workshop = Workshop(services)
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining")
    carry_out(workshop)
    return workshop


def members(workshop):
    with workshop.transaction() as session:
        version = session.get_one(VersionRow, head_of(workshop).id)
        return [Member.from_json(each) for each in version.members]


def test_only_the_members_concerned_are_trained_anew(workshop):
    before = members(workshop)
    assert [each.trained_in for each in before] == [1] * MEMBERS
    train, _ = workshop.split()
    workshop.forget(train[0])
    workshop.dispatch()
    carry_out(workshop)
    after = members(workshop)
    changed = [place for place in range(MEMBERS) if after[place] != before[place]]
    assert len(changed) == 1
    assert after[changed[0]].trained_in == 2

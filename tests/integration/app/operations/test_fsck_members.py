"""What a version says of an ensemble's members is compared with its certificates."""

import pytest
from sqlalchemy import Engine, text

from app.domain.architectures.architecture import ArchitectureSpec
from tests.support.exact_heads import carry_out, head_of
from tests.support.logbook import faults, forging
from tests.support.workshop import Workshop

ENSEMBLE = ArchitectureSpec("ensemble", members=2, of=ArchitectureSpec("logistic"))
CHANGES = [
    "jsonb_set(members, '{0,trained_in}', '9')",
    "jsonb_set(members, '{1,sha256}', '\"00\"')",
    "members - 1",
    "NULL",
]


@pytest.mark.parametrize("change", CHANGES)
def test_other_members_than_the_certificate_s_are_found(
    workshop: Workshop, app_database: Engine, change: str
) -> None:
    workshop.forged = True
    workshop.define(architecture=ENSEMBLE, mechanism="sharded_retraining", forget="retrain")
    carry_out(workshop)
    learned, held_out = workshop.split()
    workshop.forget(learned[0])
    workshop.dispatch()
    carry_out(workshop)
    workshop.forget(held_out[0])
    assert faults(workshop.services) == []
    version = head_of(workshop)
    with forging(app_database) as connection:
        statement = text(f"UPDATE versions SET members = {change} WHERE id = :id")
        assert connection.execute(statement, {"id": version.id}).rowcount == 1
    assert [(fault.where, fault.reason) for fault in faults(workshop.services)] == [
        (f"certificate {version.certificate_id}", "its version names other members than it does"),
        (f"versions {version.id}", "it differs from what the log says"),
    ]

"""What certificates account for is counted anew: whatever was changed in it is found."""

import pytest
from sqlalchemy import Engine, text

from app.evidence.certificates.signing import statement_of
from app.services import Services
from tests.support.logbook import faults, forging
from tests.support.workshop import Workshop

# Each damages one thing that no other check looks at.
CHANGES = {
    "a total": ("UPDATE accounted_requests SET records = records - 1 WHERE number = 2", "recount"),
    "the order": (
        "UPDATE accounted_requests SET number = CASE number WHEN 2 THEN 5 ELSE number END",
        "recount",
    ),
    "the last request": (
        "DELETE FROM accounted_requests WHERE number = 4",
        "states other trees, or other totals",
    ),
    "a request's records": (
        "DELETE FROM forget_request_records WHERE record_seq = (SELECT min(record_seq)"
        " FROM forget_request_records)",
        "recount",
    ),
    "a leaf": (
        "UPDATE tree_nodes SET hash = sha256(hash) WHERE tree LIKE '%covered' AND level = 0"
        " AND position = 1",
        "differs from its commitments",
    ),
    "two leaves": (
        "UPDATE tree_nodes AS one SET hash = other.hash FROM tree_nodes AS other"
        " WHERE one.tree = other.tree AND one.tree LIKE '%covered'"
        " AND one.level = 0 AND other.level = 0 AND one.position = 0 AND other.position = 2",
        "differs from its commitments",
    ),
    "a node": (
        "DELETE FROM tree_nodes WHERE tree LIKE '%covered' AND level = 1 AND position = 0",
        "missing",
    ),
    "a node too many": (
        "UPDATE tree_nodes SET position = 9 WHERE tree LIKE '%excluded' AND level = 0"
        " AND position = 0",
        "does not exist",
    ),
    "another tree": (
        "UPDATE tree_nodes SET tree = 'model_x/1/covered' WHERE tree LIKE '%excluded'",
        "no lineage's tree",
    ),
    "another lineage": (
        "UPDATE accounted_requests SET since_version = 7 WHERE number = 4",
        "without a version",
    ),
    "a count": (
        "UPDATE model_counts SET retained = retained + 1",
        "other numbers of records",
    ),
    "a count of held-out records": (
        "UPDATE model_counts SET held_out = held_out - 1",
        "other numbers of records",
    ),
    "counts that are missing": ("DELETE FROM model_counts", "other numbers of records"),
    "whose a record is": (
        "UPDATE lineage_records SET facts = set_byte(facts, 10, 1 - get_byte(facts, 10))",
        "other records than are kept",
    ),
    "a covered request": (
        "DELETE FROM accounted_requests WHERE number >= 1",
        "does not account for it",
    ),
}


@pytest.fixture
def told(workshop: Workshop) -> Services:
    """A lineage with a request of both kinds, one repeated, one of excluded records alone."""
    workshop.forged = True
    workshop.train()
    learned, held_out = workshop.split()
    workshop.forget(*learned[:2], held_out[0])
    workshop.forget(learned[3])
    workshop.unlearn()
    workshop.forget(learned[0])
    workshop.forget(held_out[1])
    assert faults(workshop.services) == []
    return workshop.services


def test_any_change_is_found(
    told: Services, app_database: Engine, subtests: pytest.Subtests
) -> None:
    tables = (
        *("accounted_requests", "forget_request_records", "tree_nodes"),
        *("model_counts", "lineage_records"),
    )
    with app_database.begin() as connection:
        connection.execute(text("CREATE SCHEMA kept"))
        for table in tables:
            connection.execute(text(f"CREATE TABLE kept.{table} AS TABLE {table}"))
    try:
        for name, (change, reason) in CHANGES.items():
            with subtests.test(name):
                with forging(app_database) as connection:
                    assert connection.execute(text(change)).rowcount >= 1
                assert any(reason in fault.reason for fault in faults(told))
            with forging(app_database) as connection:
                for table in tables:
                    connection.execute(text(f"DELETE FROM {table}"))
                    connection.execute(text(f"INSERT INTO {table} SELECT * FROM kept.{table}"))
    finally:
        with app_database.begin() as connection:
            connection.execute(text("DROP SCHEMA kept CASCADE"))
    assert faults(told) == []


@pytest.fixture
def tracked(workshop: Workshop) -> Services:
    """A tracked head whose certificates cover two requests, neither before its training."""
    workshop.forged = True
    recipe = {"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25}
    workshop.train(architecture="linear_head", recipe=recipe, mechanism="tracked_release")
    learned, _ = workshop.split()
    for name in learned[:2]:
        workshop.forget(name)
        workshop.dispatch()
        if workshop.active_run() is not None:
            workshop.work()
    assert faults(workshop.services) == []
    return workshop.services


@pytest.mark.parametrize("name", ["pushed", "remembered"])
def test_another_count_of_a_dataset_is_found(
    told: Services, app_database: Engine, name: str
) -> None:
    with forging(app_database) as connection:
        connection.execute(text(f"UPDATE datasets SET {name} = {name} + 1"))
    assert any("other numbers of records" in fault.reason for fault in faults(told))


def test_a_training_that_begins_elsewhere_than_certificates_say_is_found(
    tracked: Services, app_database: Engine
) -> None:
    with forging(app_database) as connection:
        changed = connection.execute(
            text(
                "UPDATE accounted_requests SET before_training = 1, begun_at_epoch ="
                " (SELECT min(forgotten_epoch) FROM records) WHERE number = 2"
            )
        )
        assert changed.rowcount == 1
    reasons = [fault.reason for fault in faults(tracked)]
    assert [each for each in reasons if "states other trees, or other totals" in each]
    assert not [each for each in reasons if "recount" in each]


@pytest.mark.parametrize("kind", ["base", "backbone"])
def test_another_base_is_found(told: Services, app_database: Engine, kind: str) -> None:
    query = text("SELECT id, envelope FROM certificates ORDER BY number DESC LIMIT 1")
    with forging(app_database) as connection:
        certificate_id, envelope = connection.execute(query).one()
        statement = statement_of(envelope)
        statement["predicate"][kind] = {"sha256": "5e" * 32, "tensors": ["0.weight"]}
        signed = told.signer.sign(statement)
        connection.execute(
            text("UPDATE certificates SET envelope = :envelope WHERE id = :id"),
            {"envelope": signed.envelope, "id": certificate_id},
        )
    found = {fault.where for fault in faults(told) if f"another {kind}" in fault.reason}
    assert found == {f"certificate {certificate_id}"}

"""Whatever is changed in the log is found: by ``fsck``, or with a checkpoint kept elsewhere."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, text

from app.domain.errors import ProofError
from app.domain.merkle import verify_consistency
from app.evidence import log
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import trees
from app.operations import fsck
from app.services import Services
from tests.support.logbook import (
    altered,
    bodies,
    faults,
    forging,
    opened,
    rewrite,
    sign,
    write,
)
from tests.support.workshop import Workshop

FORGERY = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FEWER = settings(FORGERY, max_examples=6)
# Each damages one thing, given two different places ``a < b`` among the entries.
ENTRIES = {
    "body": "UPDATE log_entries SET body = replace(body, 'number', 'nunber') WHERE index = :a",
    "kind": "UPDATE log_entries SET kind = 'test.other' WHERE index = :a",
    "missing": "DELETE FROM log_entries WHERE index = :a",
    "order": (
        "UPDATE log_entries AS one SET body = other.body FROM log_entries AS other"
        " WHERE (one.index, other.index) IN ((:a, :b), (:b, :a))"
    ),
    "before the first": "INSERT INTO log_entries VALUES (-1, 'test.entry', '{}')",
    "no JSON": "UPDATE log_entries SET body = '[' WHERE index = :a",
    "too deep": "UPDATE log_entries SET body = repeat('[', 100000) WHERE index = :a",
}
CHECKPOINTS = {
    "root": "UPDATE log_checkpoints SET root = sha256(root) WHERE size = :a + 1",
    "size": "UPDATE log_checkpoints SET size = size + 1000 WHERE size = :a + 1",
    "no size": "UPDATE log_checkpoints SET size = 0 WHERE size = :a + 1",
    "note": "UPDATE log_checkpoints SET note = replace(note, 'expunge', 'expurge')"
    " WHERE size = :a + 1",
    "no note": "UPDATE log_checkpoints SET note = '' WHERE size = :a + 1",
    "another's note": "UPDATE log_checkpoints AS one SET note = other.note"
    " FROM log_checkpoints AS other WHERE one.size = :a + 1 AND other.size = :b + 1",
}


LARGEST = 40
LOG = {
    "log_entries": "index < :size",
    "tree_nodes": "(position + 1) << level <= :size",
    "log_checkpoints": "size <= :size",
}
"""What of each table belongs to a log of some size."""


@pytest.fixture
def filled(services: Services, app_database: Engine):
    """Return a function that makes the log one of some size, with every tree of it signed."""
    write(services, *[1] * LARGEST, sign=True)
    assert faults(services) == []
    with app_database.begin() as connection:
        connection.execute(text("CREATE SCHEMA kept"))
        for table in LOG:
            connection.execute(text(f"CREATE TABLE kept.{table} AS TABLE {table}"))

    def fill(size: int) -> None:
        with forging(app_database) as connection:
            for table, wanted in LOG.items():
                connection.execute(text(f"DELETE FROM {table}"))
                copied = f"INSERT INTO {table} SELECT * FROM kept.{table} WHERE {wanted}"
                connection.execute(text(copied), {"size": size})

    fill(5)
    assert faults(services) == []
    yield fill
    with app_database.begin() as connection:
        connection.execute(text("DROP SCHEMA kept CASCADE"))


def places(size: int) -> st.SearchStrategy[tuple[int, int]]:
    """Two different places among so many entries."""
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    return pairs.filter(lambda pair: pair[0] != pair[1]).map(lambda pair: tuple(sorted(pair)))


@given(st.data())
@FORGERY
def test_any_change_to_entries_or_checkpoints_is_found(
    services: Services, app_database: Engine, filled, data
) -> None:
    size = data.draw(st.integers(2, 20))
    a, b = data.draw(places(size))
    statement = data.draw(st.sampled_from([*ENTRIES.values(), *CHECKPOINTS.values()]))
    filled(size)
    with forging(app_database) as connection, _unchecked(connection):
        binds = {name: value for name, value in (("a", a), ("b", b)) if f":{name}" in statement}
        assert connection.execute(text(statement), binds).rowcount in (1, 2)
    assert faults(services)


@given(st.data())
@FORGERY
def test_any_change_to_a_node_is_found_and_named(
    services: Services, app_database: Engine, filled, data
) -> None:
    size = data.draw(st.integers(4, 40))
    level = data.draw(st.integers(1, size.bit_length() - 1))
    place = {"level": level, "position": data.draw(st.integers(0, (size >> level) - 1))}
    change = data.draw(
        st.sampled_from(
            [
                "UPDATE tree_nodes SET hash = sha256(hash)",
                "UPDATE tree_nodes SET level = 40",
                "UPDATE tree_nodes SET level = -40",
                "UPDATE tree_nodes SET position = position + 100",
                "UPDATE tree_nodes SET position = -1",
                "DELETE FROM tree_nodes",
            ]
        )
    )
    filled(size)
    with forging(app_database) as connection, _unchecked(connection):
        where = " WHERE level = :level AND position = :position"
        assert connection.execute(text(change + where), place).rowcount == 1
    found = [fault.where for fault in faults(services)]
    assert f"node {level}/{place['position']}" in found
    assert len(found) == (2 if "level =" in change or "position =" in change else 1)


@given(st.data())
@FEWER
def test_a_truncated_tail_is_found_and_if_all_of_it_is_gone_by_a_kept_checkpoint(
    services: Services, app_database: Engine, filled, data
) -> None:
    size = data.draw(st.integers(2, 20))
    left = data.draw(st.integers(0, size - 1))
    filled(size)
    kept = sign(services)
    with forging(app_database) as connection:
        connection.execute(text("DELETE FROM log_entries WHERE index >= :left"), {"left": left})
    assert faults(services)
    with forging(app_database) as connection:
        connection.execute(text("DELETE FROM log_checkpoints WHERE size > :left"), {"left": left})
        connection.execute(
            text("DELETE FROM tree_nodes WHERE (position + 1) << level > :left"), {"left": left}
        )
    assert faults(services) == []
    assert any(fault.where == f"kept checkpoint {size}" for fault in faults(services, kept))


@given(st.data())
@FEWER
def test_a_superusers_rewrite_signed_with_the_services_key_is_exposed_by_an_old_checkpoint(
    services: Services, app_database: Engine, filled, data
) -> None:
    size = data.draw(st.integers(1, 20))
    place = data.draw(st.integers(0, size - 1))
    filled(size)
    kept = sign(services)
    write(services, 3, sign=True)
    history = bodies(services)
    if data.draw(st.booleans()):
        history[place] = altered(history[place])
    else:
        del history[place]
    rewrite(app_database, services, history)
    assert bodies(services)[:-1] == history[:-1]
    assert faults(services) == []
    assert f"kept checkpoint {size}" in [fault.where for fault in faults(services, kept)]
    with pytest.raises(ProofError):
        _prove_consistency(services, kept)


def test_two_branches_of_one_log_contradict_each_other(
    services: Services, app_database: Engine, filled
) -> None:
    filled(6)
    trunk = sign(services)
    shared = bodies(services)
    write(services, 3)
    branch = sign(services)
    _prove_consistency(services, trunk)
    other = [*shared, *(altered(body) for body in shared[:4])]
    rewrite(app_database, services, other)

    assert faults(services) == []
    _prove_consistency(services, trunk)
    with pytest.raises(ProofError):
        _prove_consistency(services, branch)


def test_a_log_in_order_has_no_fault_however_it_was_cut_into_chunks(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(services, 1, 5, 2, sign=True)
    write(services, 40, 3)
    kept = sign(services)
    write(services, 17)
    monkeypatch.setattr(fsck, "_CHUNK", 7)
    assert faults(services, kept) == []
    with services.database.transaction() as session:
        root = trees.root(session, 69)
    summary = fsck.check(
        services.database, keys=[services.signer.public_key], report=lambda _: None
    )
    assert summary == fsck.Summary(
        size=69, root=root, checkpoints=4, certificates=0, rows=0, faults=0
    )


def test_an_empty_log_has_no_fault(services: Services) -> None:
    assert faults(services) == []


def test_checkpoints_of_another_key_are_found(services: Services, tmp_path) -> None:
    write(services, 2, sign=True)
    stranger = StatementSigner.from_file(tmp_path / "stranger.pem", create=True)
    found: list[fsck.Fault] = []
    fsck.check(services.database, keys=[stranger.public_key], report=found.append)
    assert [fault.where for fault in found] == ["checkpoint 2"]


CERTIFICATES = [
    ("DELETE FROM certificates WHERE id = :id", "records it, but it is missing"),
    ("UPDATE certificates SET envelope = '{}' WHERE id = :id", "cannot be read"),
    ("UPDATE certificates SET envelope = '[[' WHERE id = :id", "cannot be read"),
    (
        'UPDATE certificates SET envelope = replace(envelope, \'"sig": "\', \'"sig": "00\')'
        " WHERE id = :id",
        "none of the service's keys has signed it",
    ),
    (
        "UPDATE certificates SET envelope ="
        " (SELECT envelope FROM certificates WHERE id <> :id LIMIT 1) WHERE id = :id",
        "is not the one that was recorded",
    ),
    (
        "INSERT INTO certificates SELECT 'cert_stray', model_id, version_id, basis, envelope,"
        " sha256, number + 1 FROM certificates WHERE id = :id",
        "no entry describes it",
    ),
]


def test_any_change_to_a_certificate_is_found(
    workshop: Workshop, app_database: Engine, subtests: pytest.Subtests
) -> None:
    workshop.define("one")
    workshop.define("two")
    version, other = workshop.work("one"), workshop.work("two")
    assert faults(workshop.services) == []
    with app_database.begin() as connection:
        connection.execute(text("CREATE SCHEMA kept"))
        connection.execute(text("CREATE TABLE kept.certificates AS TABLE certificates"))
    for change, reason in CERTIFICATES:
        with subtests.test(change=change):
            with _beyond_keys(app_database) as connection:
                binds = {"id": version.certificate_id, "other": other.id}
                used = {name: value for name, value in binds.items() if f":{name}" in change}
                assert connection.execute(text(change), used).rowcount == 1
            stray = "cert_stray" if "stray" in change else version.certificate_id
            found = [f.reason for f in faults(workshop.services) if f.where.endswith(f" {stray}")]
            assert any(reason in each for each in found), found
        with _beyond_keys(app_database) as connection:
            connection.execute(text("DELETE FROM certificates"))
            connection.execute(text("INSERT INTO certificates SELECT * FROM kept.certificates"))
    with app_database.begin() as connection:
        connection.execute(text("DROP SCHEMA kept CASCADE"))


@contextmanager
def _beyond_keys(owner: Engine) -> Iterator[Connection]:
    """Change tables where foreign keys do not look."""
    with forging(owner) as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        yield connection


def test_an_entry_that_does_not_state_its_certificates_digest_is_found(
    workshop: Workshop, app_database: Engine
) -> None:
    version = workshop.train("one")
    workshop.forged = True
    entries = [json.loads(body) for body in bodies(workshop.services)]
    (issued,) = (entry for entry in entries if entry["kind"] == "certificate.issued")
    del issued["sha256"]
    rewritten = [log.canonical_json(entry).encode() for entry in entries]
    rewrite(app_database, workshop.services, rewritten)
    (fault,) = faults(workshop.services)
    assert fault.where == f"certificate {version.certificate_id}"
    assert "is not the one that was recorded" in fault.reason


def test_an_entry_about_a_certificate_that_never_was_is_found(
    services: Services, app_database: Engine
) -> None:
    write(services, 1)
    entry = json.dumps({"kind": "certificate.issued", "certificate": "\x00\ud800", "sha256": "00"})
    rewrite(app_database, services, [*bodies(services), entry.encode()])
    (fault,) = faults(services)
    assert "missing" in fault.reason


def _prove_consistency(services: Services, kept: bytes) -> None:
    """Verify, as an outsider would, that the log as it is now begins with a kept checkpoint."""
    old, new = opened(services, kept), opened(services, sign(services))
    with services.database.transaction() as session:
        proof = trees.consistency_proof(session, old_size=old.size, new_size=new.size)
    verify_consistency(
        old_size=old.size, old_root=old.root, new_size=new.size, new_root=new.root, proof=proof
    )


@contextmanager
def _unchecked(connection: Connection) -> Iterator[None]:
    """Lift the constraints that would refuse a forgery, as an owner can."""
    query = text(
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conname IN ('ck_tree_nodes_level', 'ck_tree_nodes_position',"
        " 'ck_log_checkpoints_size')"
    )
    constraints = connection.execute(query).all()
    for table, name, _ in constraints:
        connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {name}"))
    yield
    for table, name, definition in constraints:
        check = definition.removesuffix(" NOT VALID")
        connection.execute(text(f"ALTER TABLE {table} ADD CONSTRAINT {name} {check} NOT VALID"))

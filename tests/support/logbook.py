"""A log that is written by the service, read back whole, and forged by the tables' owner."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.orm import Session

from app.evidence import log
from app.evidence.certificates.note import Checkpoint, open_checkpoint, origin_of
from app.evidence.log import canonical_json, checkpoints, signing_keys, trees
from app.evidence.log.tables import LogEntryRow
from app.operations import fsck
from app.services import Services
from tests.support.emptying import unguarded


def write(services: Services, *counts: int, sign: bool = False) -> None:
    """Append entries, one transaction for each count."""
    for count in counts:
        with services.database.transaction() as session:
            for number in range(count):
                log.append(session, "test.entry", number=number)
            if sign:
                log.checkpoint_at_commit(session, services.signer)


def sign(services: Services) -> bytes:
    """Sign the log as it is; return the note."""
    with services.database.transaction() as session:
        log.checkpoint_at_commit(session, services.signer)
    with services.database.transaction() as session:
        return checkpoints.latest(session).note.encode()


def opened(services: Services, note: bytes) -> Checkpoint:
    """Return what a note says, having checked its signature."""
    return open_checkpoint(note, [services.signer.note_key(origin_of(note))])


def bodies(services: Services) -> list[bytes]:
    """Return every entry's text."""
    with services.database.transaction() as session:
        query = select(LogEntryRow.body).order_by(LogEntryRow.index)
        return [body.encode() for body in session.scalars(query)]


def faults(services: Services, *kept: bytes) -> list[fsck.Fault]:
    """Return what a check of the log finds."""
    found: list[fsck.Fault] = []
    with services.database.transaction() as session:
        pems = [row.pem.encode() for row in signing_keys.all_keys(session)]
    summary = fsck.check(
        services.database,
        keys=[services.signer.public_key, *map(load_pem_public_key, pems)],
        report=found.append,
        kept=[opened(services, note) for note in kept],
        witnesses=services.witnesses,
    )
    harmful = [fault for fault in found if not fault.is_harmless]
    assert summary.faults == len(harmful)
    return harmful


@contextmanager
def forging(owner: Engine) -> Iterator[Connection]:
    """Let the tables' owner change what triggers protect."""
    with owner.begin() as connection, unguarded(connection):
        yield connection


def rewrite(owner: Engine, services: Services, entries: Sequence[bytes]) -> None:
    """Write the whole log anew: entries, nodes and, with the service's own key, checkpoints.

    The last entry says that there is one.
    """
    *earlier, last = entries
    entries = [*earlier, canonical_json({**json.loads(last), "signed": True}).encode()]
    with forging(owner) as connection:
        connection.execute(text("TRUNCATE log_entries, log_checkpoints, log_cosignatures"))
        connection.execute(text("DELETE FROM tree_nodes WHERE tree = :log"), {"log": trees.LOG})
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            for body in entries:
                _, frontier = trees.frontier(session)
                facts = json.loads(body)
                trees.extend(session, frontier, kinds=[facts["kind"]], bodies=[body.decode()])
                if facts.get("signed"):
                    checkpoints.issue(session, services.signer, frontier)
            session.commit()


def altered(body: bytes) -> bytes:
    """Return an entry that says something else, as canonically."""
    return canonical_json({**json.loads(body), "altered": True}).encode()

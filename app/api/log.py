"""``/v1/log``: the transparency log, its checkpoints and proofs; ``/v1/audit``: who did what."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from app.access import audit_trail
from app.access.audit_trail import AuditEntry
from app.api.protocol.access import Admin, GuardedRoute, LogReader, ServicesOf
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Page, PageByIndex
from app.domain.merkle import leaf_hash
from app.evidence import log
from app.evidence.log import checkpoints, cosignatures, trees
from app.evidence.log.tables import LogEntryRow

router = APIRouter(prefix="/v1", tags=["log"], route_class=GuardedRoute)

MAX_PAGE = 1000
_MAX_SIZE = 2**63 - 1
Number = Annotated[int, Query(ge=0, le=_MAX_SIZE)]
Word = Annotated[str | None, Query(min_length=1, max_length=200)]


class EntryAnswer(Answer):
    """One entry. ``body`` is the exact text that was hashed; ``leaf_hash`` is in hex."""

    index: int
    body: str
    leaf_hash: str


class EntriesAnswer(Answer):
    """Consecutive entries, in order. ``next`` is the index to continue at, if there are more."""

    entries: list[EntryAnswer]
    next: int | None


class InclusionAnswer(Answer):
    """A proof that entry ``index`` is in the tree of ``size`` entries: RFC 6962, 2.1.1, in hex."""

    index: int
    size: int
    leaf_hash: str
    root: str
    proof: list[str]


class ConsistencyAnswer(Answer):
    """A proof that the newer tree begins with the older one: RFC 6962, 2.1.2, in hex."""

    old_size: int
    old_root: str
    new_size: int
    new_root: str
    proof: list[str]


@router.get("/log/checkpoint", **answers(404), response_class=PlainTextResponse)
def get_log_checkpoint(services: ServicesOf, _: LogReader) -> PlainTextResponse:
    """Return the newest checkpoint, a signed note as C2SP's tlog-checkpoint defines it.

    Witnesses' cosignatures are added as lines when they arrive.
    """
    with services.database.transaction() as session:
        newest = checkpoints.latest(session)
        return PlainTextResponse(cosignatures.note_of(session, newest, services.witnesses))


@router.get("/log/entries", **answers())
def list_log_entries(
    services: ServicesOf,
    _: LogReader,
    start: Number = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> EntriesAnswer:
    """Return entries from index ``start`` on, counted from 0."""
    with services.database.transaction() as session:
        rows = log.entries(session, start=start, limit=limit + 1)
        more = rows[limit].index if len(rows) > limit else None
        return EntriesAnswer(entries=[_entry(row) for row in rows[:limit]], next=more)


@router.get("/log/entries/{index}", **answers(404))
def get_log_entry(index: int, services: ServicesOf, _: LogReader) -> EntryAnswer:
    """Return one entry, counted from 0."""
    with services.database.transaction() as session:
        return _entry(log.entry(session, index))


@router.get("/log/proofs/inclusion", **answers())
def prove_log_inclusion(
    services: ServicesOf, _: LogReader, index: Number, size: Number
) -> InclusionAnswer:
    """Prove that an entry is among the first ``size``."""
    with services.database.transaction() as session:
        proof = trees.inclusion_proof(session, index=index, size=size)
        return InclusionAnswer(
            index=index,
            size=size,
            leaf_hash=leaf_hash(log.entry(session, index).body.encode()).hex(),
            root=trees.root(session, size).hex(),
            proof=[hashed.hex() for hashed in proof],
        )


@router.get("/log/proofs/consistency", **answers())
def prove_log_consistency(
    services: ServicesOf,
    _: LogReader,
    old_size: Annotated[int, Query(alias="from", ge=0, le=_MAX_SIZE)],
    new_size: Annotated[int, Query(alias="to", ge=0, le=_MAX_SIZE)],
) -> ConsistencyAnswer:
    """Prove that the first ``to`` entries begin with the first ``from``."""
    with services.database.transaction() as session:
        proof = trees.consistency_proof(session, old_size=old_size, new_size=new_size)
        return ConsistencyAnswer(
            old_size=old_size,
            old_root=trees.root(session, old_size).hex(),
            new_size=new_size,
            new_root=trees.root(session, new_size).hex(),
            proof=[hashed.hex() for hashed in proof],
        )


def _entry(row: LogEntryRow) -> EntryAnswer:
    return EntryAnswer(index=row.index, body=row.body, leaf_hash=leaf_hash(row.body.encode()).hex())


@router.get("/audit", **answers())
def list_audit_entries(
    services: ServicesOf,
    _: Admin,
    page: PageByIndex,
    caller: Word = None,
    kind: Word = None,
) -> Page[AuditEntry]:
    """List who did what, newest first; optionally filtered by caller or kind."""
    with services.database.transaction() as session:
        found = audit_trail.newest_entries(
            session, caller=caller, kind=kind, before=page.after, limit=page.limit + 1
        )
    return page.answer(found, lambda entry: entry.index, lambda entry: entry)

"""Calls that may be repeated safely: the caller's key, and the answer that the call got.

What is stored reveals nothing without the caller's key: the key is stored as a keyed hash, the
answer encrypted under a key derived from it. So answers that hold secrets can be repeated.

A call that ends without an answer, because its process was killed, blocks its key until its claim
expires. Then the next attempt executes the call again under the same ``call_id``, by which the
ledger recognises a forget request that it has accepted already.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from datetime import timedelta

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import ColumnElement, delete, func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.access.pseudonyms import Pseudonyms
from app.access.tables import IdempotencyKeyRow
from app.domain.errors import CallInFlightError, IdempotencyKeyReusedError
from app.domain.ids import new_id
from app.runtime.database.queries import database_time

LIFETIME = timedelta(hours=24)
CLAIM = timedelta(seconds=60)
_RETRY_AFTER_S = 2
_NONCE_BYTES = 12


@dataclass(frozen=True)
class Call:
    """What makes two calls the same.

    Attributes:
        caller_id: the caller; equal keys of different callers are different keys.
        method, path: what is called; one key may be used on several paths.
        query, body: content of the call; it must not change under one key.
        key: the caller's own, which is never stored.
    """

    caller_id: str
    method: str
    path: str
    query: bytes
    body: bytes
    key: str


@dataclass(frozen=True)
class Answer:
    """An answer as it was sent; headers are pairs of Latin-1 texts."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True)
class Claim:
    """The right to execute a call; every attempt at it has its ``call_id``, and no other call."""

    call_id: str
    key_digest: bytes
    attempt: int
    cipher: AESGCM


class IdempotencyKeys:
    """Claims calls and keeps their answers."""

    def __init__(self, pseudonyms: Pseudonyms) -> None:
        self._pseudonyms = pseudonyms

    def claim(self, session: Session, call: Call) -> Claim | Answer:
        """Return the right to execute a call, or the answer that it had.

        Raises:
            IdempotencyKeyReusedError: the key came with another body before.
            CallInFlightError: the call is going on.
        """
        name = f"{call.method}\0{call.path}\0{call.key}".encode()
        digest = self._pseudonyms.call("key", call.caller_id, name)
        asked = call.query + b"\0" + hashlib.sha256(call.body).digest()  # no copy of a file
        content = self._pseudonyms.call("request", call.caller_id, asked)
        cipher = AESGCM(self._pseudonyms.call("answer", call.caller_id, name))
        row = _lock(session, digest, content)
        if row.request_digest != content:
            raise IdempotencyKeyReusedError("this Idempotency-Key came with another body before")
        if row.answer is not None:
            return _decrypt(cipher, digest, row.answer)
        if row.claimed_until > database_time(session):
            raise CallInFlightError(_RETRY_AFTER_S)
        row.attempt += 1
        row.claimed_until = func.clock_timestamp() + CLAIM
        return Claim(row.call_id, digest, row.attempt, cipher)


def finish(session: Session, claim: Claim, answer: Answer) -> None:
    """Keep the answer of a call, unless another attempt has taken the call over."""
    session.execute(
        update(IdempotencyKeyRow)
        .where(*_held_by(claim))
        .values(answer=_encrypt(claim.cipher, claim.key_digest, answer))
    )


def keep(session: Session, claim: Claim, answer: Answer) -> None:
    """Keep the answer of a call in the transaction of its effect: there are both, or neither.

    Raises:
        CallInFlightError: another attempt has had the effect; undo this one's.
    """
    kept = session.execute(
        update(IdempotencyKeyRow)
        .where(*_unanswered(claim))
        .values(answer=_encrypt(claim.cipher, claim.key_digest, answer))
        .returning(IdempotencyKeyRow.call_id)
    ).first()
    if kept is None:
        raise CallInFlightError(_RETRY_AFTER_S)


def abandon(session: Session, claim: Claim) -> None:
    """Free the key of a call that changed nothing: it may even be used for another body."""
    session.execute(delete(IdempotencyKeyRow).where(*_held_by(claim)))


def release(session: Session, claim: Claim) -> None:
    """End a claim early, so that another attempt at the same call need not wait."""
    session.execute(
        update(IdempotencyKeyRow)
        .where(*_held_by(claim))
        .values(claimed_until=func.clock_timestamp())
    )


def remove_expired(session: Session) -> None:
    """Forget the calls whose time is over."""
    session.execute(
        delete(IdempotencyKeyRow).where(IdempotencyKeyRow.expires_at <= func.clock_timestamp())
    )


def _lock(session: Session, key_digest: bytes, request_digest: bytes) -> IdempotencyKeyRow:
    """Return the row of a key, locked; a new one has no claim."""
    mine = IdempotencyKeyRow.key_digest == key_digest
    now = func.clock_timestamp()
    session.execute(delete(IdempotencyKeyRow).where(mine, IdempotencyKeyRow.expires_at <= now))
    fresh = insert(IdempotencyKeyRow).values(
        key_digest=key_digest,
        request_digest=request_digest,
        call_id=new_id("call"),
        attempt=0,
        claimed_until=now,
        expires_at=now + LIFETIME,
    )
    # The update changes nothing, but locks and returns a row that was there.
    either = fresh.on_conflict_do_update(
        index_elements=[IdempotencyKeyRow.key_digest], set_={"key_digest": key_digest}
    ).returning(IdempotencyKeyRow)
    return session.scalars(either, execution_options={"populate_existing": True}).one()


def _held_by(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    return (*_unanswered(claim), IdempotencyKeyRow.attempt == claim.attempt)


def _unanswered(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    return (
        IdempotencyKeyRow.key_digest == claim.key_digest,
        IdempotencyKeyRow.call_id == claim.call_id,
        IdempotencyKeyRow.answer.is_(None),
    )


def _encrypt(cipher: AESGCM, key_digest: bytes, answer: Answer) -> bytes:
    head = json.dumps({"status": answer.status, "headers": answer.headers}).encode()
    nonce = os.urandom(_NONCE_BYTES)
    plain = len(head).to_bytes(4, "big") + head + answer.body
    return nonce + cipher.encrypt(nonce, plain, key_digest)


def _decrypt(cipher: AESGCM, key_digest: bytes, stored: bytes) -> Answer:
    plain = cipher.decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], key_digest)
    end = 4 + int.from_bytes(plain[:4], "big")
    head = json.loads(plain[4:end])
    headers = tuple((str(name), str(value)) for name, value in head["headers"])
    return Answer(int(head["status"]), headers, plain[end:])

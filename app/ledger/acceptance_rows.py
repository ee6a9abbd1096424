"""All rows of new forget requests, written in one statement: each round trip delays all calls."""

from collections.abc import Mapping, Sequence

from sqlalchemy import (
    ARRAY,
    BigInteger,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    String,
    bindparam,
    text,
)
from sqlalchemy.orm import Session

from app.database.direct import directly, prepared
from app.datasets.repository import KeyedRecord
from app.ledger.outbox import Topic
from app.ledger.tables import ForgetRequestRow, ObligationRow

_REQUEST = {
    "id": String,
    "dataset_id": String,
    "api_key_id": String,
    "external_key": LargeBinary,
    "idempotency_key": LargeBinary,
    "request_digest": LargeBinary,
    "state": String,
    "forget_epoch": BigInteger,
    "record_count": Integer,
    "received_at": DateTime(timezone=True),
    "due_at": DateTime(timezone=True),
    "subject_request_id": String,
    "callback_count": Integer,
}
_OBLIGATION = ("id", "request_id", "model_id", "state", "basis")
_NAMED = {"request": String, "seq": BigInteger, "commitment": LargeBinary}
_COLUMNS = {
    **{f"request_{name}": kind for name, kind in _REQUEST.items()},
    **{f"obligation_{name}": String for name in _OBLIGATION},
    **{f"named_{name}": kind for name, kind in _NAMED.items()},
    "forgotten_seq": BigInteger,
    "forgotten_epoch": BigInteger,
    "woken_model": String,
    "woken_delay": Double,
}


def _arrays(prefix: str) -> str:
    return ", ".join(f":{name}" for name in _COLUMNS if name.startswith(f"{prefix}_"))


_INSERT = prepared(
    text(
        f"""
    WITH request AS (
        INSERT INTO forget_requests ({", ".join(_REQUEST)})
        SELECT * FROM unnest({_arrays("request")})
    ), named AS (
        INSERT INTO forget_request_records (request_id, record_seq, commitment)
        SELECT * FROM unnest({_arrays("named")})
    ), obligation AS (
        INSERT INTO obligations ({", ".join(_OBLIGATION)})
        SELECT * FROM unnest({_arrays("obligation")})
    ), forgotten AS (
        UPDATE records SET forgotten_epoch = new.epoch
        FROM unnest({_arrays("forgotten")}) AS new (seq, epoch)
        WHERE records.seq = new.seq AND records.forgotten_epoch IS NULL
    ), woken AS (
        INSERT INTO outbox (topic, subject_id, available_at)
        SELECT :topic, model, clock_timestamp() + make_interval(secs => delay)
        FROM unnest({_arrays("woken")}) AS woken (model, delay)
    )
    UPDATE datasets SET forget_epoch = :epoch WHERE id = :dataset
    """  # noqa: S608 - of names that stand above
    ).bindparams(*(bindparam(name, type_=ARRAY(kind)) for name, kind in _COLUMNS.items()))
)


def insert(
    session: Session,
    requests: Sequence[ForgetRequestRow],
    *,
    named: Sequence[tuple[str, KeyedRecord, bytes]],
    obligations: Sequence[ObligationRow],
    forgotten: Mapping[int, int],
    woken: Mapping[str, float],
) -> None:
    """Insert the requests of one dataset, whose lock the caller holds, and what comes with them.

    Args:
        session: the database; objects that it has loaded already are not updated.
        requests: in the order of their epochs; the last one's becomes the dataset's.
        named: request, record and commitment.
        obligations: open ones.
        forgotten: by records' sequence numbers, the epochs at which those are forgotten.
        woken: the ids of models that need a run, and after how many seconds each.
    """
    values: dict[str, object] = {
        "topic": Topic.SCHEDULE_MODEL,
        "dataset": requests[-1].dataset_id,
        "epoch": requests[-1].forget_epoch,
        "named_request": [request_id for request_id, _, _ in named],
        "named_seq": [record.seq for _, record, _ in named],
        "named_commitment": [commitment for _, _, commitment in named],
        "forgotten_seq": sorted(forgotten),
        "forgotten_epoch": [forgotten[seq] for seq in sorted(forgotten)],
        "woken_model": list(woken),
        "woken_delay": list(woken.values()),
    }
    for name in _REQUEST:
        values[f"request_{name}"] = [getattr(row, name) for row in requests]
    for name in _OBLIGATION:
        values[f"obligation_{name}"] = [getattr(row, name) for row in obligations]
    with directly(session) as direct:
        direct.run(_INSERT, values)

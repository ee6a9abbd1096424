"""Checks the ledger's rows against the digests of them that the log's newest entries hold.

PostgreSQL does it and reads neither into memory. Records are too many for a digest each: the log
has one of the records that a request names, and one of those that are forgotten since an epoch;
and each dataset has as many records as were pushed, and as many erased ones as the log tells.
"""

from collections.abc import Callable

from sqlalchemy import Connection, inspect, text

from app.evidence.log.writing import digests_query
from app.operations.schema import logged_tables

# As ``app/registry/datasets/digests.py`` makes them.
_SETS = """
    SELECT 'forget_request_records/' || request_id AS row, encode(sha256(string_agg(
        int8send(record_seq) || commitment || record_key
        || coalesce(subject_key, decode(repeat('00', 32), 'hex')), '' ORDER BY record_seq
    )), 'hex') AS sha256
    FROM forget_request_records JOIN records ON seq = record_seq GROUP BY request_id
    UNION ALL
    SELECT 'records/' || dataset_id || '/' || forgotten_epoch,
        encode(sha256(string_agg(int8send(seq), '' ORDER BY seq)), 'hex')
    FROM records WHERE forgotten_epoch IS NOT NULL GROUP BY dataset_id, forgotten_epoch
"""
# Cut out, not parsed as JSON: one damaged entry must not stop the search. Within a value the quotes
# would be escaped, so this can only be the member; names and digests need no escapes.
_COMPARED = """
    WITH told AS (
        SELECT DISTINCT ON (row) split_part(item, '"', 2) COLLATE "C" AS row,
            nullif(split_part(item, '"', 4), '') AS sha256
        FROM log_entries, string_to_table(
            split_part(split_part(body, '"rows":{', 2), '}', 1), ','
        ) AS item
        ORDER BY row, index DESC
    ), compared AS MATERIALIZED (
        SELECT coalesce(told.row, stored.row) AS row,
            told.sha256 AS told, stored.sha256 AS stored
        FROM (SELECT * FROM told WHERE sha256 IS NOT NULL) AS told
        FULL JOIN (__STORED__) AS stored ON told.row = stored.row COLLATE "C"
    )
    SELECT row, told IS NULL, stored IS NULL, NULL FROM compared WHERE told IS DISTINCT FROM stored
    UNION ALL
    SELECT '', false, false, count(*) FROM compared
"""
_COUNTS = text(
    """
    WITH told AS (
        SELECT split_part(split_part(body, '"dataset":"', 2), '"', 1) AS dataset, kind,
            CAST(substring(body FROM '"records":([0-9]{1,18})[,}]') AS bigint) AS records
        FROM log_entries WHERE kind IN ('records.pushed', 'records.erased')
    )
    SELECT dataset FROM (
        SELECT dataset, sum(records) FILTER (WHERE kind = 'records.pushed') AS pushed,
            sum(records) FILTER (WHERE kind = 'records.erased') AS erased
        FROM told GROUP BY dataset
    ) AS told FULL JOIN (
        SELECT dataset_id AS dataset, count(*) AS stored, count(erased_at) AS gone
        FROM records GROUP BY dataset_id
    ) AS stored USING (dataset)
    WHERE coalesce(pushed, 0) <> coalesce(stored, 0) OR coalesce(erased, 0) <> coalesce(gone, 0)
    """
)
_LEFT = text(
    """
    SELECT DISTINCT request_id FROM forget_request_records
    JOIN forget_requests ON id = request_id JOIN records ON seq = record_seq
    WHERE (state = 'completed' OR completed_at IS NOT NULL) AND erased_at IS NULL
    """
)


def check_rows(connection: Connection, fault: Callable[[str, str], None]) -> int:
    """Report every row that is not what the log says; return how many were compared."""
    stored = " UNION ALL ".join((_SETS, *map(digests_query, map(inspect, logged_tables()))))
    compared = 0
    statement = text(_COMPARED.replace("__STORED__", stored))
    for row, untold, missing, count in connection.execute(statement):
        if count is not None:
            compared = count
        elif untold:
            fault(_shown(row), "no entry describes it")
        elif missing:
            fault(_shown(row), "the log describes it, but it is missing")
        else:
            fault(_shown(row), "it differs from what the log says")
    for dataset in connection.scalars(_COUNTS):
        fault(_shown(f"datasets/{dataset}"), "its records are not as many as the log says")
    for request in connection.scalars(_LEFT):
        fault(f"forget_requests {request}", "it is completed, but not all its records are erased")
    return compared


def _shown(row: str) -> str:
    name = row.replace("/", " ", 1)
    return name if name.isascii() and name.isprintable() else ascii(name)

"""Receipts: what a request's sender keeps to show later that it was covered."""

import base64
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.certificates.receipts import Receipt
from app.domain.errors import InvalidInputError
from app.ledger import repository
from app.ledger.requests import ForgetRequests


def receipt_of(
    session: Session,
    requests: ForgetRequests,
    request_id: str,
    *,
    record_ids: Sequence[str],
    subject_ids: Sequence[str],
) -> dict[str, Any]:
    """Return the receipt of a request as ``expunge verify --receipt`` reads it.

    The ids are not stored here, so they are given again.

    Raises:
        NotFoundError: the request does not exist.
        InvalidInputError: these are not the ids that it named.
    """
    row = repository.request(session, request_id)
    salt = requests.receipt_salt(request_id)
    receipt = Receipt(salt, row.record_count, tuple(record_ids), tuple(subject_ids))
    stored = set(repository.commitments_of(session, request_id))
    people = receipt.of_subjects(stored)
    named = receipt.of_records.union(*(found.values() for found in people))
    if not stored or named != stored or not all(people):
        raise InvalidInputError(
            "these are not the ids of this request: give all of them, as they were sent, and no "
            "others"
        )
    return {
        "request": request_id,
        "receipt_salt": base64.b64encode(salt).decode(),
        "records": row.record_count,
        "record_ids": list(record_ids),
        "subject_ids": list(subject_ids),
    }

"""Certificates issued again for a later request count every record once, and verify."""

import base64
import json
from typing import Any

from sqlalchemy import select

from app.evidence.certificates.verification import check_statement
from app.ledger.certificates import issuing
from app.operations import reconciliation
from app.registry import repository as registry
from app.registry.datasets.tables import ShardRow
from tests.support.workshop import RECORDS, Workshop


def _verified(workshop: Workshop, request: str) -> dict[str, Any]:
    """Check a request's only certificate against the served weights; return what it says."""
    (owed,) = workshop.obligations(request)
    assert owed.certificate_id is not None
    with workshop.transaction() as session:
        envelope = issuing.certificate(session, owed.certificate_id).envelope
        head = registry.head_version(session, registry.model_named(session, "model"))
        assert head is not None
    payload = base64.b64decode(json.loads(envelope)["payload"])
    return check_statement(payload, weights=workshop.services.blobs.read(head.blob_id))[1]


def test_a_held_out_record_that_two_requests_name_is_one_record(workshop: Workshop) -> None:
    workshop.train()
    learned, held_out = workshop.split()
    workshop.forget(learned[0], held_out[0])
    workshop.unlearn()
    again = workshop.forget(learned[0], held_out[0])

    forgotten = _verified(workshop, again)["forgotten"]
    assert (forgotten["requests"], forgotten["records"], forgotten["excluded_records"]) == (2, 1, 1)


def test_records_that_were_lost_before_weights_came_again_are_counted_when_they_are_named(
    workshop: Workshop,
) -> None:
    workshop.define(upload=True)
    workshop.upload("model")
    workshop.work()
    _lose_every_record(workshop)
    workshop.push(first=RECORDS)
    workshop.upload("model")
    workshop.work()
    first, second = workshop.forget("record-1", "record-2"), workshop.forget("record-2")

    predicate = _verified(workshop, first)
    assert (predicate["basis"], predicate["model"]["version"]) == ("unlearned", 2)
    forgotten = predicate["forgotten"]
    assert (forgotten["requests"], forgotten["records"]) == (1, 2)
    both = _verified(workshop, second)["forgotten"]
    assert (both["requests"], both["records"], both["covered"]["size"]) == (2, 2, 3)


def _lose_every_record(workshop: Workshop) -> None:
    """Lose the shards, and have the ledger agree: no request names these records."""
    with workshop.transaction() as session:
        blob_ids = session.scalars(select(ShardRow.blob_id)).all()
    for blob_id in blob_ids:
        workshop.services.blobs._keys.destroy(blob_id)
    with workshop.transaction() as session:
        reconciliation.reconcile(session, workshop.services.blobs, workshop.services.signer)

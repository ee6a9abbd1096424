"""What a lineage's certificates account for, request by request, and what their bundles prove."""

from typing import Any

import pytest
from sqlalchemy import Engine, event

from app.client.download import bundle_bytes
from app.domain.errors import InvalidInputError, TargetNotMetError, VerificationError
from app.evidence.certificates.bundle import read_bundle
from app.evidence.certificates.receipts import Receipt, check_receipt
from app.evidence.certificates.schema import AsTrained, read_statement
from app.evidence.certificates.signing import payload_of
from app.evidence.certificates.tables import CertificateRow
from app.evidence.certificates.verification import verify
from app.ledger.certificates import bundles, issuing
from app.registry.tables import VersionRow
from tests.support.accounts import covered
from tests.support.salts import salt_of
from tests.support.trust import trust_in
from tests.support.workshop import Workshop


def _certificate(workshop: Workshop, request: str) -> CertificateRow:
    (owed,) = workshop.obligations(request)
    with workshop.transaction() as session:
        return issuing.certificate(session, str(owed.certificate_id))


def _bundle(
    workshop: Workshop,
    certificate: CertificateRow,
    request: str | None = None,
    previous: CertificateRow | None = None,
) -> bytes:
    with workshop.transaction() as session:
        return bundle_bytes(
            bundles.bundle_of(
                session,
                certificate,
                signer=workshop.services.signer,
                request_id=request,
                previous=previous,
            )
        )


def _stated(certificate: CertificateRow) -> Any:
    predicate = read_statement(payload_of(certificate.envelope))[0].predicate
    assert not isinstance(predicate, AsTrained)
    return predicate.forgotten


def _receipt(workshop: Workshop, request: str, *ids: str) -> Receipt:
    return Receipt(salt_of(workshop.services, request), len(ids), ids, ())


def _verify(workshop: Workshop, bundle: bytes, weights: bytes, **evidence: bytes) -> None:
    verify(bundle=bundle, weights=weights, trusted=trust_in(workshop.services), **evidence)


def _weights(workshop: Workshop) -> bytes:
    with workshop.transaction() as session:
        version = session.get_one(VersionRow, workshop.model().head_version_id)
        return workshop.services.blobs.read(version.blob_id)


def test_every_request_finds_its_own_leaves_and_no_others(workshop: Workshop) -> None:
    workshop.train()
    learned, held_out = workshop.split()
    asked = [(learned[0], held_out[0]), (learned[1], learned[2]), (held_out[0], learned[1])]
    requests = [workshop.forget(*ids) for ids in asked]
    workshop.unlearn()
    asked += [(learned[0], learned[2]), (held_out[1],), (held_out[1], held_out[0])]
    requests += [workshop.forget(*ids) for ids in asked[3:]]

    found = [_certificate(workshop, request) for request in requests]
    sizes = [_stated(certificate) for certificate in found]
    assert [each.covered.size for each in sizes[:4]] == [4, 4, 4, 6]
    assert (sizes[3].requests, sizes[3].records, sizes[3].excluded_records) == (4, 3, 1)
    assert [(each.first, each.leaves, each.records) for each in sizes[4:]] == [(2, 1, 1), (3, 2, 2)]
    for request, ids, certificate in zip(requests, asked, found, strict=True):
        receipt = _receipt(workshop, request, *ids)
        for other, stated in zip(found, sizes, strict=True):
            proof = read_bundle(_bundle(workshop, other, request)).request
            if other.id == certificate.id:
                check_receipt(receipt, proof, stated)
            for stranger, theirs in zip(requests, asked, strict=True):
                if stranger != request:
                    with pytest.raises(VerificationError):
                        check_receipt(_receipt(workshop, stranger, *theirs), proof, stated)


def test_nothing_is_read_of_earlier_requests(workshop: Workshop, app_database: Engine) -> None:
    """A request more, and a bundle, take as many rows after 40 requests as after 5."""
    workshop.train()
    learned, _ = workshop.split()
    workshop.forget(learned[0], learned[1])
    workshop.unlearn()
    rows: list[int] = []

    def count(connection: Any, cursor: Any, *_: Any) -> None:
        rows.append(max(cursor.rowcount, 0))

    engine = workshop.services.database.engine
    read = {}
    for number in range(41):
        rows.clear()
        event.listen(engine, "after_cursor_execute", count)
        request = workshop.forget(learned[number % 2])
        certificate = _certificate(workshop, request)
        _bundle(workshop, certificate, request)
        event.remove(engine, "after_cursor_execute", count)
        read[number] = sum(rows)
    assert read[40] <= read[5] + 30  # some nodes more


def test_a_training_begins_other_trees_and_a_bundle_of_them_says_so(workshop: Workshop) -> None:
    workshop.train()
    learned, _ = workshop.split()
    first = workshop.forget(learned[0])
    workshop.unlearn()
    old = _certificate(workshop, first)
    workshop.retrain()
    workshop.work()
    again, _ = workshop.split()
    second = workshop.forget(again[1])
    workshop.unlearn()
    new = _certificate(workshop, second)
    assert (_stated(old).since_version, _stated(new).since_version) == (1, 3)
    assert _stated(new).records == 1
    bundle = _bundle(workshop, new, second, previous=old)
    _verify(workshop, bundle, _weights(workshop), previous=_bundle(workshop, old))
    assert read_bundle(_bundle(workshop, new, first)).request.covered is None
    with pytest.raises(VerificationError, match="0 of 1"):
        check_receipt(
            _receipt(workshop, first, learned[0]),
            read_bundle(_bundle(workshop, old, second)).request,
            _stated(old),
        )


def test_certificates_of_a_lineage_take_nothing_back(workshop: Workshop) -> None:
    """A later one proves that its trees begin with those of any earlier one, of either kind."""
    workshop.train()
    learned, held_out = workshop.split()
    requests = [workshop.forget(learned[0], held_out[0]), workshop.forget(held_out[1])]
    workshop.unlearn()
    requests += [workshop.forget(learned[0]), workshop.forget(held_out[2], held_out[0])]
    found = sorted((_certificate(workshop, r) for r in requests), key=lambda row: row.number)
    weights = _weights(workshop)
    current = [row for row in found if row.version_id == workshop.model().head_version_id]
    for new in current:
        for old in found[: found.index(new) + 1]:
            bundle = _bundle(workshop, new, previous=old)
            _verify(workshop, bundle, weights, previous=_bundle(workshop, old))
    newest, oldest = current[-1], current[0]
    with pytest.raises(VerificationError, match="fewer commitments"):
        _verify(workshop, _bundle(workshop, oldest), weights, previous=_bundle(workshop, newest))
    with pytest.raises(VerificationError, match="no proof from that certificate"):
        _verify(workshop, _bundle(workshop, newest), weights, previous=_bundle(workshop, oldest))
    with pytest.raises(InvalidInputError, match="older certificate"):
        _bundle(workshop, oldest, previous=newest)


def test_no_statement_is_made_of_less_than_the_trees_hold(workshop: Workshop) -> None:
    """A version that reads a record again cannot be certified as if it were without it."""
    workshop.train()
    learned, _ = workshop.split()
    request = workshop.forget(learned[0])
    model = workshop.model()
    with workshop.transaction() as session:
        head = session.get_one(VersionRow, model.head_version_id)
        epoch = head.covers_epoch
        with pytest.raises(TargetNotMetError):
            covered(session, model, head, [request], through_epoch=epoch)
        with pytest.raises(TargetNotMetError):
            issuing.exclude(session, model, head, [request])
        session.rollback()


def test_requests_that_come_together_share_a_statement(workshop: Workshop) -> None:
    """As many as there are, it is about all of their leaves, which follow one another."""
    workshop.train()
    learned, _ = workshop.split()
    requests = [workshop.forget(*ids) for ids in (learned[:1], learned[1:3], learned[:2])]
    with workshop.transaction() as session:
        model = workshop.model()
        head = session.get_one(VersionRow, model.head_version_id)
        epoch = max(workshop.request(r).forget_epoch for r in requests)
        coverage = covered(session, model, head, requests, through_epoch=epoch)
        again = covered(session, model, head, requests[:1], through_epoch=epoch)
        session.rollback()
    assert (coverage.requests, coverage.records, coverage.covered.size) == (3, 3, 5)
    assert again == coverage

"""What an ensemble certifies is verified offline, beside older certificates and with receipts."""

import base64
import json

import pytest

from app.domain.architectures import ArchitectureSpec
from app.evidence.certificates.verification import verify
from app.ledger.certificates import bundles, issuing
from app.registry.tables import VersionRow
from tests.support.exact_heads import carry_out
from tests.support.salts import salt_of
from tests.support.trust import trust_in

ENSEMBLE = ArchitectureSpec("ensemble", members=4, of=ArchitectureSpec("mlp", {"hidden": [3]}))


@pytest.fixture(params=["retrain", "leave_out"])
def workshop(workshop, request):
    workshop.define(
        architecture=ENSEMBLE, mechanism="auto", forget=request.param, minimum_members=1
    )
    carry_out(workshop)
    return workshop


def forget(workshop, *records):
    """Return the request, and the certificate that it got."""
    request = workshop.forget(*records)
    workshop.dispatch()
    if workshop.active_run() is not None:
        carry_out(workshop)
    return request, certificate_of(workshop, request)


def certificate_of(workshop, request):
    (owed,) = workshop.obligations(request)
    return owed.certificate_id


def verified(workshop, request, *named, older, records=None):
    """Return what is found of a request's certificate beside an older one."""
    services, found = workshop.services, {}
    with workshop.transaction() as session:
        before = issuing.certificate(session, older)
        certificate = issuing.certificate(session, certificate_of(workshop, request))
        version = session.get_one(VersionRow, certificate.version_id)
        bundle = bundles.bundle_of(
            session, certificate, signer=services.signer, request_id=request, previous=before
        )
        previous = bundles.bundle_of(session, before, signer=services.signer)
    receipt = {
        "receipt_salt": base64.b64encode(salt_of(services, request)).decode(),
        "records": records or len(named),
        "record_ids": named,
    }
    verify(
        bundle=json.dumps(bundle).encode(),
        weights=services.blobs.read(version.blob_id),
        trusted=trust_in(services),
        previous=json.dumps(previous).encode(),
        receipt=json.dumps(receipt).encode(),
        report=lambda step: found.__setitem__(step.name, step.finding),
    )
    return found


def test_a_record_that_is_named_again_needs_no_second_training(workshop):
    """At once, where the version covers it already; or beside a record of another member."""
    train, _ = workshop.split()
    member = workshop.membership().member_of
    with workshop.transaction() as session:
        rows = {each: workshop.record(session, each) for each in train}
    of = {each: member(row) for each, row in rows.items()}
    other = next(each for each in train if of[each] != of[train[0]])
    _, first = forget(workshop, train[0])
    again, second = forget(workshop, train[0])
    assert "1 records are covered" in verified(workshop, again, train[0], older=first)["receipt"]
    both, _ = forget(workshop, train[0], other)
    for older in (first, second):
        found = verified(workshop, both, train[0], other, older=older)
        assert "2 records are covered" in found["receipt"]


def test_a_record_pushed_and_forgotten_again_is_trained_out_once(workshop):
    """The model learned from the first record of this id alone."""
    train, _ = workshop.split()
    workshop.cancel(workshop.forget(train[0]))
    _, first = forget(workshop, train[1])
    workshop.push_again(train[0])
    again, _ = forget(workshop, train[0])
    found = verified(workshop, again, train[0], older=first, records=2)["receipt"]
    assert "1 records are covered, 1 never touched the weights" in found

"""``/v1/certificates`` and the public keys."""

import json
from typing import Any

from fastapi import APIRouter

from app.api.access import ModelsReader, ServicesOf
from app.api.errors import problem_responses
from app.api.schemas import Answer
from app.certificates.signing import BUNDLE_MEDIA_TYPE
from app.certificates.tables import CertificateRow
from app.ledger import repository

router = APIRouter(tags=["certificates"])


class BundleAnswer(Answer):
    """A certificate bundle: what ``expunge verify`` reads."""

    media_type: str
    envelope: dict[str, Any]


class PublicKey(Answer):
    """A public key that signs certificates."""

    key_id: str
    algorithm: str
    pem: str


class PublicKeys(Answer):
    """All public keys of this service."""

    keys: list[PublicKey]


def bundle_of(row: CertificateRow) -> BundleAnswer:
    """Return a certificate's bundle."""
    return BundleAnswer(media_type=BUNDLE_MEDIA_TYPE, envelope=json.loads(row.envelope))


@router.get("/v1/certificates/{certificate_id}", responses=problem_responses(404))
def get_certificate(certificate_id: str, services: ServicesOf, _: ModelsReader) -> BundleAnswer:
    """Return one certificate's bundle."""
    with services.database.transaction() as session:
        return bundle_of(repository.certificate(session, certificate_id))


@router.get("/.well-known/expunge-keys.json")
def get_public_keys(services: ServicesOf) -> PublicKeys:
    """List the keys that sign certificates. Compare them with a copy from another channel."""
    signer = services.signer
    return PublicKeys(
        keys=[PublicKey(key_id=signer.key_id, algorithm="ed25519", pem=signer.public_key_pem)]
    )

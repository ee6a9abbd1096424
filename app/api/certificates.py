"""``/v1/certificates`` and the public keys."""

import json
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from app.api.access import ModelsReader, ServicesOf
from app.api.errors import problem_responses
from app.api.schemas import Answer
from app.certificates.model_signing import ALGORITHM
from app.certificates.signing import BUNDLE_MEDIA_TYPE
from app.certificates.tables import CertificateRow
from app.domain.errors import NotFoundError
from app.ledger import repository
from app.services import Services

router = APIRouter(tags=["certificates"])


class BundleAnswer(Answer):
    """A certificate bundle: what ``expunge verify`` reads."""

    media_type: str
    envelope: dict[str, Any]


class PublicKey(Answer):
    """A public key, and what it signs."""

    key_id: str
    algorithm: str
    purpose: Literal["certificates", "model signatures"]
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
    """List the public keys. Compare them with a copy from another channel."""
    return PublicKeys(keys=_public_keys(services))


@router.get(
    "/.well-known/expunge-keys/{key_id}.pem",
    response_class=PlainTextResponse,
    responses={status: problem_responses(404)[status] for status in (404, 422)},
)
def get_public_key(key_id: str, services: ServicesOf) -> str:
    """Return one public key as a PEM file. Compare it with a copy from another channel."""
    for key in _public_keys(services):
        if key.key_id == key_id:
            return key.pem
    raise NotFoundError("key", key_id)


def _public_keys(services: Services) -> list[PublicKey]:
    certificates, models = services.signer, services.model_signer
    return [
        PublicKey(
            key_id=certificates.key_id,
            algorithm="ed25519",
            purpose="certificates",
            pem=certificates.public_key_pem,
        ),
        PublicKey(
            key_id=models.key_id,
            algorithm=ALGORITHM,
            purpose="model signatures",
            pem=models.public_key_pem,
        ),
    ]

"""``/v1/certificates`` and the public keys."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse
from sqlalchemy.orm import Session

from app.api.protocol.access import GuardedRoute, ModelsReader, ServicesOf
from app.api.protocol.errors import answers, problem_responses
from app.api.protocol.schemas import Answer
from app.domain.errors import NotFoundError
from app.evidence.certificates.model_signing import ALGORITHM
from app.evidence.certificates.tables import CertificateRow
from app.evidence.log import signing_keys
from app.ledger.certificates import bundles, issuing
from app.services import Services

router = APIRouter(tags=["certificates"], route_class=GuardedRoute)


class BundleAnswer(Answer):
    """A certificate bundle, the input of ``expunge verify``."""

    media_type: str
    envelope: dict[str, Any]
    log: dict[str, Any]
    request: dict[str, Any] | None = None
    growth: dict[str, Any] | None = None


class PublicKey(Answer):
    """A public key and its use; certificate keys also sign the log.

    ``valid_from`` is null for the first key, ``valid_until`` for the key in use. Signatures made
    from ``compromised_since`` on are not valid.
    """

    key_id: str
    algorithm: str
    purpose: Literal["certificates", "model signatures"]
    pem: str
    valid_from: datetime | None
    valid_until: datetime | None
    compromised_since: datetime | None


class PublicKeys(Answer):
    """All public keys of this service, and the name of its log."""

    origin: str
    keys: list[PublicKey]


Since = Annotated[
    int | None,
    Query(ge=0, description="Size of an older checkpoint, to prove that the log only grew since."),
]
Previous = Annotated[
    str | None,
    Query(
        description="An older certificate of the model, to prove that this one accounts for all "
        "that it accounts for; by default the one before it.",
    ),
]


@router.get("/v1/certificates/{certificate_id}", **answers(404), response_model_exclude_none=True)
def get_certificate(
    certificate_id: str,
    services: ServicesOf,
    _: ModelsReader,
    since: Since = None,
    previous: Previous = None,
) -> BundleAnswer:
    """Return the bundle of one certificate of a released version."""
    with services.database.transaction() as session:
        certificate = issuing.released_certificate(session, certificate_id)
        older = None
        if previous is not None:
            older = issuing.released_certificate(session, previous)
        return bundle_answer(services, session, certificate, since=since, previous=older)


def bundle_answer(
    services: Services,
    session: Session,
    certificate: CertificateRow,
    *,
    since: int | None,
    request_id: str | None = None,
    previous: CertificateRow | None = None,
) -> BundleAnswer:
    """Return a certificate's bundle as it is shown.

    Without ``previous`` it proves that it takes nothing back of the certificate before it.
    """
    bundle = bundles.bundle_of(
        session,
        certificate,
        signer=services.signer,
        witnesses=services.witnesses,
        since=since,
        request_id=request_id,
        previous=previous or issuing.certificate_before(session, certificate),
    )
    return BundleAnswer(**bundle)


@router.get("/.well-known/expunge-keys.json")
def get_public_keys(services: ServicesOf) -> PublicKeys:
    """List all keys, the one in use first. Compare them with a copy from another channel."""
    return _public_keys(services)


@router.get(
    "/.well-known/expunge-keys/{key_id}.pem",
    response_class=PlainTextResponse,
    responses={status: problem_responses(404)[status] for status in (404, 422)},
)
def get_public_key(key_id: str, services: ServicesOf) -> str:
    """Return one public key as a PEM file. Compare it with a copy from another channel."""
    for key in _public_keys(services).keys:
        if key.key_id == key_id:
            return key.pem
    raise NotFoundError("key", key_id)


def _public_keys(services: Services) -> PublicKeys:
    with services.database.transaction() as session:
        signing_keys.require_in_use(session, services.signer)
    with services.database.transaction() as session:
        trusted = signing_keys.trusted(session)
    models = services.model_signer
    of_models = PublicKey(
        key_id=models.key_id,
        algorithm=ALGORITHM,
        purpose="model signatures",
        pem=models.public_key_pem,
        valid_from=None,
        valid_until=None,
        compromised_since=None,
    )
    return PublicKeys(
        origin=trusted.origin,
        keys=[*(PublicKey(**key.to_json()) for key in trusted.keys), of_models],
    )

"""``/v1/certificates`` and the public keys."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.api.access import ModelsReader, ServicesOf
from app.api.errors import problem_responses
from app.api.schemas import Answer
from app.ledger import bundles, repository, signing_keys

router = APIRouter(tags=["certificates"])


class BundleAnswer(Answer):
    """A certificate bundle: what ``expunge verify`` reads."""

    media_type: str
    envelope: dict[str, Any]
    log: dict[str, Any]
    request: dict[str, Any] | None = None


class PublicKey(Answer):
    """A public key that signs, or has signed, certificates and the log.

    ``valid_from`` is null for the first key, ``valid_until`` for the one in use.
    """

    key_id: str
    algorithm: str
    pem: str
    valid_from: datetime | None
    valid_until: datetime | None


class PublicKeys(Answer):
    """All public keys of this service."""

    keys: list[PublicKey]


Since = Annotated[
    int | None,
    Query(ge=0, description="Size of an older checkpoint: proves that the log grew out of it."),
]


@router.get(
    "/v1/certificates/{certificate_id}",
    responses=problem_responses(404),
    response_model_exclude_none=True,
)
def get_certificate(
    certificate_id: str, services: ServicesOf, _: ModelsReader, since: Since = None
) -> BundleAnswer:
    """Return one certificate's bundle."""
    with services.database.transaction() as session:
        certificate = repository.certificate(session, certificate_id)
        return BundleAnswer(**bundles.bundle_of(session, certificate, since=since))


@router.get("/.well-known/expunge-keys.json")
def get_public_keys(services: ServicesOf) -> PublicKeys:
    """List all keys, the one in use first. Compare them with a copy from another channel."""
    with services.database.transaction() as session:
        signing_keys.require_in_use(session, services.signer)
        return PublicKeys(
            keys=[
                PublicKey(
                    key_id=key.id,
                    algorithm="ed25519",
                    pem=key.pem,
                    valid_from=key.valid_from,
                    valid_until=key.valid_until,
                )
                for key in signing_keys.all_keys(session)
            ]
        )

"""Public information about this processor: its capabilities and its certificate."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from app.api.protocol.access import ServicesOf
from app.ledger.subjects.status import API_VERSION
from app.opendsr.schemas import Discovery, SupportedIdentity
from app.runtime.locations import public_url

PREFIX = "/opendsr/v2"
ERASURE = "erasure"
RAW = "raw"

router = APIRouter(prefix=PREFIX, tags=["OpenDSR"])


@router.get("/discovery")
def get_opendsr_discovery(services: ServicesOf) -> Discovery:
    """List this processor's capabilities; public."""
    settings = services.settings
    return Discovery(
        api_version=API_VERSION,
        supported_identities=[
            SupportedIdentity(identity_type=kind, identity_format=RAW)
            for kind in settings.opendsr_identity_types
        ],
        supported_subject_request_types=[ERASURE],
        processor_certificate=f"{public_url(settings)}{PREFIX}/certificate.pem",
    )


class PemResponse(PlainTextResponse):
    """A certificate with its chain."""

    media_type = "application/x-pem-file"


@router.get("/certificate.pem", response_class=PemResponse)
def get_opendsr_certificate(services: ServicesOf) -> PemResponse:
    """Return the signing key's X.509 certificate; public."""
    return PemResponse(services.processor_signer.certificate_pem)

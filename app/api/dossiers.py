"""``POST /v1/dossiers``: the evidence for one case, signed; it changes nothing."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from app.access.api_keys import Caller
from app.api.protocol.access import GuardedRoute, LogReader, ServicesOf, require_scope
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Body
from app.domain import strict_json
from app.domain.states import Scope
from app.evidence.log import signing_keys
from app.ledger import dossiers
from app.services import Services

router = APIRouter(prefix="/v1/dossiers", tags=["certificates"], route_class=GuardedRoute)
GivenName = Annotated[
    str, StringConstraints(pattern=r"^(receipts|audits)/[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class DossierBody(Body):
    """What a dossier is about, and the caller's own files in it."""

    kind: dossiers.Kind
    name: Annotated[str, StringConstraints(min_length=1, max_length=100)] = Field(
        description="A request's id, or a model's or dataset's name."
    )
    given: dict[GivenName, Sha256] = Field(
        default={},
        max_length=100,
        description="The SHA-256 digests of files that the caller adds, by path: `receipts/…` and "
        "`audits/…`. The service signs the digests, and does not see the files.",
    )


class DossierAnswer(Answer):
    """A dossier's files but the caller's own, and the signed statement that names all by digest."""

    statement: dict[str, Any] = Field(description="A DSSE envelope with an in-toto statement.")
    files: dict[str, str]


@router.post("", **answers(404))
def create_dossier(body: DossierBody, services: ServicesOf, caller: LogReader) -> DossierAnswer:
    """Collect the evidence about a request, a model or a dataset; `expunge verify` checks it.

    It needs the scope `models:read`, too, and `forget:read`.
    """
    files, statement = collected(services, caller, body.kind, body.name, body.given)
    return DossierAnswer(statement=statement, files=files)


def collected(
    services: Services,
    caller: Caller,
    kind: dossiers.Kind,
    name: str,
    given: Mapping[str, str] = MappingProxyType({}),
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a dossier's files and the signed statement, for a caller who may read all of it."""
    for scope in (Scope.LOG_READ, Scope.MODELS_READ, Scope.FORGET_READ):
        require_scope(caller, scope)
    with services.database.transaction() as session:
        signing_keys.require_in_use(session, services.signer)
    signer, witnesses = services.signer, services.witnesses
    with services.database.snapshot() as session:
        files, envelope = dossiers.collect(
            session, kind, name, given=given, signer=signer, witnesses=witnesses
        )
    return files, strict_json.loads(envelope)

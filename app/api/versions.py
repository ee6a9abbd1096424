"""``/v1/models/{name}/versions``: released versions and their downloads."""

from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import Field

from app.api.certificates import BundleAnswer, Since, bundle_answer
from app.api.protocol.access import (
    DefinitionReader,
    GuardedRoute,
    ModelsReader,
    OwnModelsReader,
    ServicesOf,
)
from app.api.protocol.conditions import download
from app.api.protocol.errors import answers, problem_responses
from app.api.protocol.schemas import Answer, Page, PageByNumber, described
from app.domain.release import signature_filename, weights_filename
from app.domain.scores import warnings_of
from app.domain.states import VersionState
from app.evidence.certificates.model_signing import SIGNATURE_MEDIA_TYPE
from app.ledger.certificates import issuing
from app.ledger.models import serving
from app.registry import repository as registry
from app.registry.card import model_card
from app.registry.tables import ModelRow, VersionRow
from app.registry.tasks import task_of
from app.services import Services

router = APIRouter(prefix="/v1/models", tags=["versions"], route_class=GuardedRoute)

_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_MOST = 2**31 - 1
_FILE_HEADERS = ("ETag", "Repr-Digest", "Accept-Ranges", "Content-Disposition")
ReleasedState = Literal["certified", "retired", "shredded"]
Number = Annotated[int, Path(ge=1, le=_MOST)]


class MarkdownResponse(Response):
    """Markdown in UTF-8, RFC 7763."""

    media_type = "text/markdown"


class MemberAnswer(Answer):
    """A member of an ensemble: the digest of its tensors, and the version that trained it.

    Of one that is out, both are null, and ``out_since`` is the first version without it.
    """

    sha256: str | None = None
    trained_in: int | None = None
    out_since: int | None = None


class VersionAnswer(Answer):
    """One released version; ``reason`` says why it is no longer served."""

    number: int
    state: str
    sha256: str
    size_bytes: int
    certificate: str
    evaluation: dict[str, Any]
    warnings: list[str] = Field(description="Why not to rely on it, by what was measured.")
    members: list[MemberAnswer] | None = Field(
        description="Of an ensemble: its members, in order. Null for other models."
    )
    created_at: datetime
    retired_at: datetime | None
    reason: str | None
    links: dict[str, str]


@router.get("/{name}/certified", **answers(404, 410))
def get_certified_version(name: str, services: ServicesOf, _: OwnModelsReader) -> VersionAnswer:
    """Show the current certified version."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        current = serving.current_version(session, model)
        return version_answer(model, current, served=current)


@router.head("/{name}/certified/weights", include_in_schema=False)
@router.get(
    "/{name}/certified/weights",
    **answers(404, 410, status=307, headers=("Location",)),
    response_class=RedirectResponse,
)
def redirect_to_certified_weights(
    name: str, services: ServicesOf, _: ModelsReader
) -> RedirectResponse:
    """Redirect to the weights of the current certified version."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        number = serving.current_version(session, model).number
    return RedirectResponse(
        f"{_path(name, number)}/weights", status_code=307, headers={"Cache-Control": "no-store"}
    )


@router.get("/{name}/versions", **answers(404))
def list_versions(
    name: str,
    services: ServicesOf,
    _: ModelsReader,
    page: PageByNumber,
    state: ReleasedState | None = None,
) -> Page[VersionAnswer]:
    """List released versions, newest first, including retired ones."""
    wanted = None if state is None else VersionState(state)
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        rows = registry.released_versions(
            session, model.id, state=wanted, before=page.after, limit=page.limit + 1
        )
        served = serving.find_current_version(session, model)
        return page.answer(
            rows, lambda row: row.number, partial(version_answer, model, served=served)
        )


@router.head("/{name}/versions/{number}/weights", include_in_schema=False)
@router.get(
    "/{name}/versions/{number}/weights",
    response_class=Response,
    responses=problem_responses(404, 410, 412, 416)
    | {
        200: {
            "description": "The weights in safetensors format",
            "content": _BINARY,
            "headers": described(*_FILE_HEADERS),
        },
        206: {
            "description": "The part named by Range",
            "content": _BINARY,
            "headers": described(*_FILE_HEADERS, "Content-Range"),
        },
        304: {
            "description": "The copy named by If-None-Match is current",
            "headers": described("ETag"),
        },
    },
)
def download_version_weights(
    name: str, number: Number, request: Request, services: ServicesOf, _: OwnModelsReader
) -> Response:
    """Download a version's weights or one range of them; a retired version is gone."""
    return weights_answer(request, services, name, number)


def weights_answer(request: Request, services: Services, name: str, number: int) -> Response:
    """Return the weights of a served version."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        version = serving.served_version(session, model, number)
        blob_id, sha256, size = version.blob_id, version.sha256, version.size_bytes
    return download(
        request,
        services.blobs,
        blob_id=blob_id,
        sha256=sha256,
        size=size,
        filename=weights_filename(name, number),
    )


@router.get(
    "/{name}/versions/{number}/certificate", **answers(404), response_model_exclude_none=True
)
def get_version_certificate(
    name: str, number: Number, services: ServicesOf, _: DefinitionReader, since: Since = None
) -> BundleAnswer:
    """Return a version's certificate bundle; retired versions keep theirs."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        version = registry.version_numbered(session, model, number)
        certificate = issuing.certificate(session, version.certificate_id)
        return bundle_answer(services, session, certificate, since=since)


@router.get(
    "/{name}/versions/{number}/model.sig",
    response_class=JSONResponse,
    responses=problem_responses(404, 410)
    | {
        200: {
            "description": "A Sigstore bundle",
            "content": {SIGNATURE_MEDIA_TYPE: {"schema": {"type": "object"}}},
        }
    },
)
def get_model_signature(
    name: str, number: Number, services: ServicesOf, _: ModelsReader
) -> JSONResponse:
    """Return the OpenSSF Model Signing v1 signature of a served version."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        sha256 = serving.served_version(session, model, number).sha256
    filename = signature_filename(name, number)
    return JSONResponse(
        services.model_signer.sign(name=weights_filename(name, number), sha256=sha256),
        media_type=SIGNATURE_MEDIA_TYPE,
        headers={
            "Cache-Control": "private, no-cache",
            "Content-Disposition": f'attachment; filename="{filename}"',
        },
    )


@router.get("/{name}/versions/{number}/card", **answers(404), response_class=MarkdownResponse)
def get_model_card(
    name: str, number: Number, services: ServicesOf, _: ModelsReader
) -> MarkdownResponse:
    """Return a version's model card: its certificate in words."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        version = registry.version_numbered(session, model, number)
        card = model_card(
            model,
            version,
            schema=task_of(model).schema(),
            predicate=issuing.predicate_of(session, version.certificate_id),
            served=version == serving.find_current_version(session, model),
        )
        return MarkdownResponse(card)


def version_answer(
    model: ModelRow, version: VersionRow, *, served: VersionRow | None
) -> VersionAnswer:
    """Show a version, with links to what can be downloaded now; the model serves ``served``."""
    parts = ["certificate", "card"]
    if version == served:
        parts += ["weights", "model.sig"]
    path = _path(model.name, version.number)
    links = {part: f"{path}/{part}" for part in parts}
    warnings = warnings_of(version.evaluation)
    return VersionAnswer.of(
        version, certificate=version.certificate_id, warnings=warnings, links=links
    )


def _path(name: str, number: int) -> str:
    return f"/v1/models/{name}/versions/{number}"

"""``/dossiers``: all evidence about a request, a model or a dataset, as a zip file."""

from fastapi import Response

from app.api.dossiers import collected
from app.api.protocol.access import ServicesOf
from app.evidence.certificates import dossier
from app.ledger.dossiers import Kind
from app.web import pages
from app.web.access import LogReader

router = pages.router()


@router.get("/dossiers/{kind}/{name}")
def download(kind: Kind, name: str, services: ServicesOf, visitor: LogReader) -> Response:
    """Return a dossier without files of the visitor's own; it needs three scopes, as the API's."""
    files, statement = collected(services, visitor.caller, kind, name)
    zipped = dossier.pack(dossier.contents(files, statement))
    headers = {"Content-Disposition": f'attachment; filename="{name}.dossier.zip"'}
    return Response(zipped, media_type="application/zip", headers=headers)

"""Is the service alive, and is it ready?"""

from fastapi import APIRouter, Response
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.api.access import ServicesOf
from app.api.schemas import Answer

router = APIRouter(tags=["operations"])


class Health(Answer):
    """One word per part."""

    status: str
    database: str | None = None


@router.get("/livez")
def livez() -> Health:
    """Answer as long as the process runs."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health, "description": "Not ready"}})
def readyz(services: ServicesOf, response: Response) -> Health:
    """Answer 200 when requests can be served."""
    try:
        with services.database.transaction() as session:
            session.execute(text("SELECT 1"))
    except DBAPIError:
        response.status_code = 503
        return Health(status="unavailable", database="unreachable")
    return Health(status="ok", database="ok")

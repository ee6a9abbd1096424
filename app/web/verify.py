"""``/verify``: verifies any certificate in the browser; no chosen file is uploaded."""

from fastapi import Response

from app.web import pages
from app.web.access import AnyVisitor
from app.web.rendering import render

router = pages.router()


@router.get("/verify")
def show(visitor: AnyVisitor) -> Response:
    """Show the form."""
    return render("verify.html", visitor)

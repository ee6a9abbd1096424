"""``/docs``: the API's interface, from its OpenAPI document; ``/verify``: a certificate's check.

The interface is a page like the others: no script, nothing from another host.
"""

import json
from typing import Any

from fastapi import Request, Response

from app.runtime.locations import public_url
from app.web import pages
from app.web.access import AnyVisitor
from app.web.rendering import render

router = pages.router()

Json = dict[str, Any]


@router.get("/docs")
def show(request: Request) -> Response:
    """Show the interface to anyone, as ``/openapi.json`` is shown."""
    document = request.app.openapi()
    url = public_url(request.app.state.services.settings)
    groups: dict[str, list[Json]] = {}
    for path, methods in document["paths"].items():
        for method, found in methods.items():
            example = _example(document, url, method.upper(), path, found)
            operation = {**found, "call": f"{method.upper()} {path}", "example": example}
            groups.setdefault(found.get("tags", ["other"])[0], []).append(operation)
    return render("reference.html", None, document=document, groups=groups, spelt=json.dumps)


def _example(document: Json, url: str, method: str, path: str, found: Json) -> str:
    words = ["curl"] if method == "GET" else ["curl", "-X", method]
    if "security" in found:
        words.append('-H "Authorization: Bearer $KEY"')
    for media, content in found.get("requestBody", {}).get("content", {}).items():
        words.append(f"-H 'Content-Type: {media}'")
        if media == "application/json":
            words.append(f"-d '{json.dumps(_sample(document, content['schema']))}'")
        else:
            words.append("--data-binary @FILE")
    return " ".join([*words, f"'{url}{path}'"])


def _sample(document: Json, schema: Json) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return an example of a body: what its schema gives, for required members at least."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _sample(document, document["components"]["schemas"][name])
    if schema.get("examples"):
        return schema["examples"][0]
    required = schema.get("required", [])
    return {
        name: _sample(document, member)
        for name, member in schema.get("properties", {}).items()
        if name in required or member.get("examples")
    }


@router.get("/verify")
def show_verification(visitor: AnyVisitor) -> Response:
    """Verify any certificate in the browser; no chosen file is uploaded."""
    return render("verify.html", visitor)

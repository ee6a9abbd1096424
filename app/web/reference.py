"""``/docs``: the API's interface, from its OpenAPI document; ``/verify``: a certificate's check.

The interface is a page like the others: no script, nothing from another host.
"""

import json
from collections.abc import Iterator
from typing import Any

from fastapi import Request, Response
from markupsafe import Markup, escape

from app.locations import public_url
from app.web import pages
from app.web.access import AnyVisitor
from app.web.rendering import render

router = pages.router()

Json = dict[str, Any]
_JSON = "application/json"
_PROBLEM = "application/problem+json"


@router.get("/docs")
def show(request: Request) -> Response:
    """Show the interface to anyone, as ``/openapi.json`` is shown."""
    document = request.app.openapi()
    url = public_url(request.app.state.services.settings)
    groups: dict[str, list[Json]] = {}
    for path, methods in document["paths"].items():
        for method, found in methods.items():
            operation = _operation(document, url, method.upper(), path, found)
            groups.setdefault(found.get("tags", ["other"])[0], []).append(operation)
    schemas = sorted(document["components"]["schemas"].items())
    objects = [(name, _paragraphs(schema), list(_members(schema))) for name, schema in schemas]
    about = _plain(document["info"]["description"]).replace("\n  ", " ")
    notes = [line.removeprefix("* ") for line in about.splitlines() if line]
    return render("reference.html", None, groups=groups, objects=objects, notes=notes)


def _operation(document: Json, url: str, method: str, path: str, found: Json) -> Json:
    """Return one call, as the template shows it."""
    contents = found.get("requestBody", {}).get("content", {})
    return {
        "name": found["operationId"],
        "call": f"{method} {path}",
        "text": _paragraphs(found),
        "scopes": [scope for need in found.get("security", []) for scope in need["bearer"]],
        "parameters": [
            _field(each["name"], each["schema"], each["in"], _text(each, each["schema"]))
            for each in found.get("parameters", [])
        ],
        "body": [(media, _kind(content.get("schema", {}))) for media, content in contents.items()],
        "answers": [
            (status, _answer(document, answer))
            for status, answer in sorted(found["responses"].items())
        ],
        "example": _example(document, url, method, path, found),
    }


def _field(name: str, schema: Json, note: str, text: str) -> Json:
    """Return a parameter with where it goes, or a member of an object, which may be optional."""
    return {"name": name, "kind": _kind(schema), "note": note, "text": text}


def _example(document: Json, url: str, method: str, path: str, found: Json) -> str:
    words = ["curl"] if method == "GET" else ["curl", "-X", method]
    if "security" in found:
        words.append('-H "Authorization: Bearer $KEY"')
    for media, content in found.get("requestBody", {}).get("content", {}).items():
        words.append(f"-H 'Content-Type: {media}'")
        if media == _JSON:
            words.append(f"-d '{json.dumps(_sample(document, content['schema']))}'")
        else:
            words.append("--data-binary @FILE")
    return " ".join([*words, f"'{url}{path}'"])


def _sample(document: Json, schema: Json) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return an example of a body: what its schema gives, for required members at least."""
    if "$ref" in schema:
        return _sample(document, _target(document, schema))
    if schema.get("examples"):
        return schema["examples"][0]
    required = schema.get("required", [])
    return {
        name: _sample(document, member)
        for name, member in schema.get("properties", {}).items()
        if name in required or member.get("examples")
    }


def _target(document: Json, reference: Json) -> Json:
    node: Json = document
    for part in reference["$ref"].removeprefix("#/").split("/"):
        node = node[part]
    return node


def _answer(document: Json, answer: Json) -> Markup:
    if "$ref" in answer:
        answer = _target(document, answer)
    kinds = [
        _kind(content.get("schema", {}), media)
        for media, content in answer.get("content", {}).items()
        if media != _PROBLEM  # its description names the types
    ]
    said = answer.get("description", "").replace("Successful Response", "")
    found = Markup(" or ").join(kinds)
    return Markup("{}: {}").format(said, found) if said and found else found or escape(said)


def _members(schema: Json) -> Iterator[Json]:
    for name, member in schema.get("properties", {}).items():
        note = "" if name in schema.get("required", []) else "optional"
        yield _field(name, member, note, _text(member, member))


def _text(described: Json, schema: Json) -> str:
    said = described.get("description", "") or schema.get("description", "")
    default = schema.get("default")
    known = "" if default in (None, {}, []) else f"Default: `{json.dumps(default)}`."
    return " ".join(_plain(f"{said} {known}").split())


def _paragraphs(described: Json) -> list[str]:
    text = _plain(described.get("description", ""))
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def _plain(text: str) -> str:
    return text.replace("``", "`")


def _kind(schema: Json, otherwise: str = "anything") -> Markup:
    """Return a type in words, with a link to each object."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="#{0}">{0}</a>').format(name)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return Markup(" or ").join(_kind(part) for part in schema[union])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return Markup(", ").join(Markup("<code>{}</code>").format(value) for value in values)
    kind = str(schema.get("type", otherwise))
    if kind == "array":
        return Markup("list of {}").format(_kind(schema.get("items", {})))
    return escape(f"{kind} ({schema['format']})" if "format" in schema else kind)


@router.get("/verify")
def show_verification(visitor: AnyVisitor) -> Response:
    """Verify any certificate in the browser; no chosen file is uploaded."""
    return render("verify.html", visitor)

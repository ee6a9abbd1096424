"""The API reference in Markdown, made from OpenAPI: ``python -m app.cli.reference > docs/api.md``.

The description comes from a service that is set up for the purpose, in a temporary directory.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from app.cli.service import init
from app.embedded import EmbeddedServers
from app.main import create_app
from app.services import open_services
from app.settings import Settings

Json = dict[str, Any]

_METHODS = ("get", "post", "put", "patch", "delete")
_INTRODUCTION = """# API reference

<!-- Made by `make api-reference` from the service's OpenAPI description; a test compares them. -->

The service describes itself at `/openapi.json`; this page says the same for people. Calls carry
`Authorization: Bearer KEY`. Errors are problems (RFC 9457,
`application/problem+json`): `type`, `title`, `status`, `detail`, and what the type adds.
"""


def markdown(openapi: Json) -> str:
    """Return an OpenAPI 3.1 description as one page of Markdown."""
    resolved: Json = _resolved(openapi, openapi)
    about = _lines(str(resolved["info"].get("description", ""))) + "\n"
    parts = [_INTRODUCTION, *([about] if about.strip() else []), *_operations(resolved)]
    return "\n".join([*parts, *_schemas(resolved)]).rstrip() + "\n"


def describe() -> Json:
    """Return the OpenAPI description of a service with default settings."""
    for name in [name for name in os.environ if name.startswith("EXPUNGE_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as directory:
        os.environ["EXPUNGE_DATA_DIR"] = directory
        try:
            with redirect_stdout(sys.stderr):
                init()
            return create_app(open_services(Settings())).openapi()
        finally:
            EmbeddedServers(Path(directory)).stop()


def _resolved(node: Any, openapi: Json) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return a copy in which references to anything but objects are replaced by what they name."""
    if isinstance(node, list):
        return [_resolved(part, openapi) for part in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref", "")
    if not isinstance(reference, str) or not reference.startswith("#/components/"):
        return {name: _resolved(part, openapi) for name, part in node.items()}
    _, _, kind, name = reference.split("/")
    return node if kind == "schemas" else _resolved(openapi["components"][kind][name], openapi)


def _operations(openapi: Json) -> Iterator[str]:
    by_tag: dict[str, list[tuple[str, Json]]] = {}
    for path, item in openapi["paths"].items():
        for method in (method for method in _METHODS if method in item):
            tag = item[method].get("tags", ["other"])[0]
            by_tag.setdefault(tag, []).append((f"{method.upper()} {path}", item[method]))
    for tag, operations in by_tag.items():
        yield f"## {tag.capitalize()}\n"
        for title, operation in operations:
            yield from _operation(title, operation)


def _operation(title: str, operation: Json) -> Iterator[str]:
    yield f"### `{title}`\n"
    yield _lines(str(operation.get("description", operation.get("summary", "")))) + "\n"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "| parameter | in | type | |\n| --- | --- | --- | --- |"
        for parameter in parameters:
            schema = parameter["schema"]
            text = parameter.get("description", schema.get("description", ""))
            yield _row(
                f"`{parameter['name']}`", parameter["in"], _type(schema), _cell(text, schema)
            )
        yield ""
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body: `{media}`, {_type(content.get('schema', {}))}\n"
    yield "| answer | |\n| --- | --- |"
    for status, answer in sorted(operation["responses"].items()):
        yield _row(status, _answer(answer))
    yield ""


def _answer(answer: Json) -> str:
    contents = []
    for media, content in answer.get("content", {}).items():
        if media == "application/problem+json":
            contents.append(_problem(content))
        elif content.get("schema"):
            contents.append(_type(content["schema"]))
        else:
            contents.append(f"`{media}`")
    said = " ".join(answer.get("description", "").split())
    said = "" if said == "Successful Response" else said
    if contents and contents[0].startswith("problem "):  # which names the types that the rest uses
        said = said.partition(":")[0]
    return ": ".join(part for part in (said, " or ".join(contents)) if part)


def _problem(content: Json) -> str:
    """Name the types of problem, where the description gives an example of each."""
    examples = [example.get("value", {}) for example in content.get("examples", {}).values()]
    types = [str(example["type"]).rpartition(":")[2] for example in examples if "type" in example]
    return "problem " + ", ".join(f"`{name}`" for name in types) if types else "a problem"


def _schemas(openapi: Json) -> Iterator[str]:
    yield "## Objects\n"
    for name, schema in sorted(openapi["components"]["schemas"].items()):
        yield f"### {name}\n"
        if schema.get("description"):
            yield f"{_lines(schema['description'])}\n"
        if "enum" in schema:
            yield "One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".\n"
        if schema.get("properties"):
            yield "| member | type | |\n| --- | --- | --- |"
            for member, kind in schema["properties"].items():
                required = "" if member in schema.get("required", []) else "optional"
                yield _row(
                    f"`{member}`", _type(kind), _cell(kind.get("description", ""), kind, required)
                )
            yield ""


def _cell(text: str, schema: Json, *more: str) -> str:
    said = [" ".join(text.split()), *more]
    if schema.get("default") is not None:
        said.append(f"default `{json.dumps(schema['default'])}`")
    return "; ".join(part for part in said if part)


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " or ".join(_type(part) for part in schema[union])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return f"{kind} ({schema['format']})" if "format" in schema else kind


def _lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(markdown(describe()))

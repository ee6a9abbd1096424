"""The API reference in Markdown, made from OpenAPI: ``python -m app.cli.reference > docs/api.md``.

It needs no server: the description follows from the code alone.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.certificates.model_signing import ModelSigner
from app.certificates.signing import StatementSigner
from app.datasets.pseudonyms import Pseudonyms
from app.main import create_app
from app.services import (
    key_store_dir,
    model_signing_key_file,
    open_services,
    pseudonym_key_file,
    signing_key_file,
)
from app.settings import Settings
from app.storage.file_keys import FileKeyStore

Json = dict[str, Any]

_METHODS = ("get", "post", "put", "patch", "delete")
_INTRODUCTION = """# API reference

<!-- Made by `make api-reference` from the service's OpenAPI description; a test compares them. -->

The service describes itself at `/docs` and `/openapi.json`; this page says the same for reading.
Calls carry `Authorization: Bearer KEY`. Errors are problems (RFC 9457,
`application/problem+json`): `type`, `title`, `status`, `detail`, and what the type adds.
"""


def markdown(openapi: Json) -> str:
    """Return an OpenAPI 3.1 description as one page of Markdown."""
    return "\n".join([_INTRODUCTION, *_operations(openapi), *_schemas(openapi)]).rstrip() + "\n"


def describe() -> Json:
    """Return the service's OpenAPI description, without any server."""
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(
            data_dir=Path(directory),
            database_url="postgresql+psycopg://nobody@localhost/nothing",
            redis_url="redis://localhost/0",
        )
        StatementSigner.from_file(signing_key_file(settings), create=True)
        ModelSigner.from_file(model_signing_key_file(settings), create=True)
        Pseudonyms.from_file(pseudonym_key_file(settings), create=True)
        FileKeyStore(key_store_dir(settings), create=True)
        return create_app(open_services(settings)).openapi()


def _operations(openapi: Json) -> Iterator[str]:
    tag = None
    for path, item in openapi["paths"].items():
        for method in _METHODS:
            if method not in item:
                continue
            operation = item[method]
            own = operation.get("tags", ["other"])[0]
            if own != tag:
                tag = own
                yield f"## {tag.capitalize()}\n"
            yield from _operation(f"{method.upper()} {path}", operation)


def _operation(title: str, operation: Json) -> Iterator[str]:
    yield f"### `{title}`\n"
    yield f"{_lines(operation.get('description', operation.get('summary', '')))}\n"
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
            contents.append("a problem")
        elif content.get("schema"):
            contents.append(_type(content["schema"]))
        else:
            contents.append(f"`{media}`")
    said = " ".join(answer.get("description", "").split())
    said = "" if said == "Successful Response" else said
    return ": ".join(part for part in (said, " or ".join(contents)) if part)


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
        said.append(f"default `{schema['default']}`")
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

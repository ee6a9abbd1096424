"""The types of the client's answers, made from OpenAPI: ``make client-answers``."""

import sys
from typing import Any

from tests.support.api_reference import describe

ROOTS = (
    "BackboneAnswer",
    "BundleAnswer",
    "CertificateOfObligation",
    "ConsistencyAnswer",
    "DatasetAnswer",
    "EntryAnswer",
    "ForgetAnswer",
    "InclusionAnswer",
    "KeyAnswer",
    "ModelAnswer",
    "NewKeyAnswer",
    "PlansAnswer",
    "PushAnswer",
    "RunAnswer",
    "VersionAnswer",
)
HEAD = '''"""The service's answers, as the client returns them; made by ``make client-answers``.

Times are ISO 8601 with an offset. A newer service may send more members than these.
"""

from typing import Any, NotRequired, TypedDict
'''
TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def source(schemas: dict[str, Any]) -> str:
    """Return the module ``app.client.answers``; what a type contains stands before it."""
    made: dict[str, str] = {}
    for name in ROOTS:
        _make(name, schemas, made)
    return "\n\n".join([HEAD, *made.values()])


def _make(name: str, schemas: dict[str, Any], made: dict[str, str]) -> None:
    if name in made:
        return
    schema = schemas[name]
    lines = [f"class {name}(TypedDict):", f'    """{schema["description"].splitlines()[0]}"""', ""]
    for member, of in schema["properties"].items():
        kind = _type(of, schemas, made)
        needed = member in schema.get("required", ())
        lines.append(f"    {member}: {kind if needed else f'NotRequired[{kind}]'}")
    made[name] = "\n".join(lines) + "\n"


def _type(schema: dict[str, Any], schemas: dict[str, Any], made: dict[str, str]) -> str:
    if "anyOf" in schema:
        return " | ".join(_type(part, schemas, made) for part in schema["anyOf"])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        _make(name, schemas, made)
        return name
    if schema["type"] == "array":
        return f"list[{_type(schema['items'], schemas, made)}]"
    if schema["type"] == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {_type(values, schemas, made) if isinstance(values, dict) else 'Any'}]"
    return TYPES[schema["type"]]


if __name__ == "__main__":
    sys.stdout.write(source(describe()["components"]["schemas"]))

"""The client's types against what the service says of its answers."""

from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from app import answers
from app.main import create_app
from app.services import Services

SCHEMAS = {
    answers.Features: "FeaturesBody",
    answers.Dataset: "DatasetAnswer",
    answers.Push: "PushAnswer",
    answers.Backbone: "BackboneAnswer",
    answers.Run: "RunAnswer",
    answers.Version: "VersionAnswer",
    answers.Model: "ModelAnswer",
    answers.Obligation: "ObligationAnswer",
    answers.ForgetRequest: "ForgetAnswer",
    answers.Bundle: "BundleAnswer",
    answers.RequestCertificate: "CertificateOfObligation",
    answers.Quote: "QuoteAnswer",
    answers.Declined: "DeclinedAnswer",
    answers.Plans: "PlansAnswer",
    answers.ApiKey: "KeyAnswer",
    answers.NewApiKey: "NewKeyAnswer",
    answers.LogEntry: "EntryAnswer",
    answers.InclusionProof: "InclusionAnswer",
    answers.ConsistencyProof: "ConsistencyAnswer",
}
NAMES = {str: "string", int: "integer", float: "number", NoneType: "null", dict: "object"}


def test_every_type_is_compared() -> None:
    here = {value for value in vars(answers).values() if is_typeddict(value)}
    assert here == set(SCHEMAS)


@pytest.mark.parametrize("kind", SCHEMAS, ids=lambda kind: kind.__name__)
def test_a_type_is_what_the_service_sends(services: Services, kind: Any) -> None:
    schemas = create_app(services).openapi()["components"]["schemas"]
    properties = schemas[SCHEMAS[kind]]["properties"]
    for name, hint in get_type_hints(kind).items():
        assert _of_hint(hint) == _of_schema(properties[name]), name


def _of_hint(hint: Any) -> set[str]:
    if isinstance(hint, UnionType):
        return {name for part in get_args(hint) for name in _of_hint(part)}
    if is_typeddict(hint):
        return {SCHEMAS[hint]}
    if get_origin(hint) is list:
        return {f"array of {name}" for name in _of_hint(get_args(hint)[0])}
    return {NAMES[get_origin(hint) or hint]}


def _of_schema(schema: dict[str, Any]) -> set[str]:
    if "anyOf" in schema:
        return {name for part in schema["anyOf"] for name in _of_schema(part)}
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return {name if name in SCHEMAS.values() else "object"}
    if schema["type"] == "array":
        return {f"array of {name}" for name in _of_schema(schema["items"])}
    return {schema["type"]}

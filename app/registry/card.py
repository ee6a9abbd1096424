"""The model card of one version, in Markdown: its certificate in words, and how to check it.

Everything about the guarantee, the forgotten records and the evaluation is read from the signed
statement, so the card cannot claim more.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, Template

from app.certificates.plain_words import (
    assumptions_in_words,
    guarantee_in_words,
    limits_in_words,
)
from app.domain.filenames import certificate_filename, signature_filename, weights_filename
from app.domain.schema import FeatureSchema
from app.domain.states import VersionState, WeightsSource


@dataclass(frozen=True)
class CardFacts:
    """The input of a card.

    Attributes:
        model, number: the version.
        state, reason: whether it is served, and if not, why.
        sha256, size_bytes: of its weights.
        architecture, recipe: the model's definition, as JSON values.
        weights_source: trained here or imported.
        schema: the records' schema.
        predicate: predicate of the version's certificate.
    """

    model: str
    number: int
    state: VersionState
    reason: str | None
    sha256: str
    size_bytes: int
    architecture: Mapping[str, Any]
    recipe: Mapping[str, Any]
    weights_source: WeightsSource
    schema: FeatureSchema
    predicate: Mapping[str, Any]


def model_card(facts: CardFacts) -> str:
    """Return the card."""
    return _TEMPLATE.render(
        facts=facts,
        predicate=facts.predicate,
        weights=weights_filename(facts.model, facts.number),
        certificate=certificate_filename(facts.model, facts.number),
        signature=signature_filename(facts.model, facts.number),
        guarantee=guarantee_in_words(facts.predicate),
        limits=limits_in_words(facts.predicate),
        assumptions=assumptions_in_words(facts.predicate),
    )


def _code(document: Mapping[str, Any]) -> str:
    """Format JSON in a fence that its text cannot close."""
    text = json.dumps(document, indent=2, sort_keys=True)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}json\n{text}\n{fence}"


def _template() -> Template:
    environment = Environment(  # noqa: S701 - Markdown, whose only foreign text is in ``code``
        loader=PackageLoader("app.registry"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = _code
    return environment.get_template("card.md")


_TEMPLATE = _template()

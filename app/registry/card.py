"""The model card of one version, in Markdown: its certificate in words, and how to check it.

Everything about the guarantee, the forgotten records and the evaluation is read from the signed
statement, so the card cannot claim more.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from jinja2 import Environment, PackageLoader

from app.domain.architectures import (
    Member,
    members_by_version,
    members_in_words,
    network_in_words,
)
from app.domain.release import certificate_filename, signature_filename, weights_filename
from app.domain.schema import InputSchema
from app.domain.scores import figures, metric_in_words, warnings_of
from app.domain.tasks.catalogue import task_in_words
from app.evidence.certificates.plain_words import (
    assumptions_in_words,
    guarantee_in_words,
    limits_in_words,
    recomputable_in_words,
)
from app.registry.tables import ModelRow, VersionRow
from app.registry.tasks import task_of

IN_WORDS: Final = {
    each.__name__: each
    for each in (
        *(guarantee_in_words, limits_in_words, assumptions_in_words, figures, warnings_of),
        *(network_in_words, task_in_words, metric_in_words, recomputable_in_words),
    )
}
"""Filters of templates: what documents and names mean."""


def model_card(
    model: ModelRow,
    version: VersionRow,
    *,
    schema: InputSchema,
    predicate: Mapping[str, Any],
    served: bool,
    weights: str | None = None,
    certificate: str | None = None,
) -> str:
    """Return the card of a model's version.

    ``schema`` is of what the network reads, before a backbone; ``predicate`` is the certificate's.
    ``served`` says whether its weights can be downloaded now.
    ``weights`` and ``certificate`` name the files beside the card; by default as downloads do.
    """
    name, number = model.name, version.number
    members = [Member.from_json(each) for each in predicate.get("members") or ()]
    return _TEMPLATE.render(
        model=model,
        version=version,
        schema=schema,
        members=members_in_words(members, version=number) if members else None,
        trained=members_by_version(members),
        out=members_by_version(members, out=True),
        task=task_of(model),
        predicate=predicate,
        served=served,
        weights=weights or weights_filename(name, number),
        certificate=certificate or certificate_filename(name, number),
        signature=signature_filename(name, number),
    )


def _code(document: Mapping[str, Any]) -> str:
    """Format JSON in a fence that its text cannot close."""
    text = json.dumps(document, indent=2, sort_keys=True)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}json\n{text}\n{fence}"


_ENVIRONMENT = Environment(  # noqa: S701 - Markdown, whose only foreign text is in ``code``
    loader=PackageLoader("app.registry"),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {"code": _code, **IN_WORDS}
_TEMPLATE = _ENVIRONMENT.get_template("card.md")

"""The model card of one version, in Markdown: its certificate in words, and how to check it.

Everything about the guarantee, the forgotten records and the evaluation is read from the signed
statement, so the card cannot claim more.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.certificates.plain_words import (
    assumptions_in_words,
    guarantee_in_words,
    limits_in_words,
)
from app.domain.filenames import certificate_filename, signature_filename, weights_filename
from app.domain.schema import FeatureSchema
from app.domain.states import Basis, VersionState, WeightsSource


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
    sections = (
        _head(facts),
        _section("What it is", _identity(facts)),
        _section("How it was trained", _training(facts)),
        _section("What was forgotten", _forgotten(facts.predicate)),
        _section("What is guaranteed", guarantee_in_words(facts.predicate)),
        _section("What is not covered", [_bullets(limits_in_words(facts.predicate))]),
        _section("What it rests on", _assumptions(facts.predicate)),
        _section("Evaluation (outside the guarantee)", _evaluation(facts.predicate)),
        _section("How to verify", _verification(facts)),
    )
    return "\n\n".join(sections) + "\n"


def _head(facts: CardFacts) -> str:
    title = f"# {facts.model}, version {facts.number}"
    if facts.state == VersionState.CERTIFIED:
        return title
    return (
        f"{title}\n\n> **This version is {facts.state}** ({facts.reason}). Its weights are no "
        "longer served; do not use copies of them."
    )


def _identity(facts: CardFacts) -> list[str]:
    schema = facts.schema
    rows = {
        "weights": f"`{weights_filename(facts.model, facts.number)}` (safetensors), "
        f"{facts.size_bytes} bytes",
        "sha256": f"`{facts.sha256}`",
        "task": f"classification into {schema.classes} classes",
        "input": f"one record of shape {list(schema.shape)}, stored as {schema.dtype}; the network "
        f"sees (raw - {schema.offset:g}) * {schema.scale:.7g}",
    }
    return [_table(rows), "Architecture:", _code(facts.architecture)]


def _training(facts: CardFacts) -> list[str]:
    times = facts.predicate["times"]
    if facts.weights_source is WeightsSource.UPLOAD:
        origin = (
            "The first weights were imported; how they were trained is not known to this service. "
            "Recipe of the training that follows here:"
        )
    else:
        origin = "Trained by this service. Recipe, as declared:"
    told = [origin, _code(facts.recipe)]
    mechanism = facts.predicate.get("mechanism")
    if mechanism is not None:
        told += [
            f"Certified by the mechanism `{mechanism['name']}`, whose actual parameters are in the "
            "certificate; where they describe training, they take precedence.",
        ]
    return [
        *told,
        f"This version's run began at {times['started_at']} and was certified at "
        f"{times['certified_at']}.",
    ]


def _forgotten(predicate: Mapping[str, Any]) -> list[str]:
    if predicate["basis"] == Basis.RELEASED_AS_TRAINED:
        return ["Nothing: this version was published as it was trained."]
    forgotten = predicate["forgotten"]
    if forgotten["records"] == 0:
        return [
            "No record yet: when this version was certified, none of the records it was trained "
            "on had been requested. The guarantee holds for the mechanism as it ran.",
        ]
    return [
        f"{forgotten['records']} records, of {forgotten['requests']} forget requests: everything "
        "forgotten for this model, since its beginning, when this version's run started. "
        "The operator counted them; a receipt proves that particular records are among them.",
        f"Root of their salted commitments: `{forgotten['commitments_root']}`.",
    ]


def _assumptions(predicate: Mapping[str, Any]) -> list[str]:
    assumptions = assumptions_in_words(predicate)
    if not assumptions:
        return ["No assumption: nothing is guaranteed."]
    accountant = predicate["accountant"]
    return [
        f"The guarantee follows from {accountant['source']}, accounted by `{accountant['name']}` "
        f"version {accountant['version']}, under these conditions:",
        _bullets(assumptions),
    ]


def _evaluation(predicate: Mapping[str, Any]) -> list[str]:
    measured = dict(predicate["evaluation"])
    measured.pop("outside_the_guarantee", None)
    audit = measured.pop("audit", None)
    told = [
        "Measured on held-out records and published without noise. These numbers are not covered "
        "by the guarantee.",
        _figures(measured),
    ]
    if audit is None:
        return told
    note = {"note": audit["note"]} if "note" in audit else {}
    figures = {name: value for name, value in audit.items() if name not in note}
    return [
        *told,
        "A membership attack by this service, also outside the guarantee:",
        _figures(figures),
        *note.values(),
    ]


def _verification(facts: CardFacts) -> list[str]:
    weights = weights_filename(facts.model, facts.number)
    bundle = certificate_filename(facts.model, facts.number)
    signature = signature_filename(facts.model, facts.number)
    url = f'"$EXPUNGE_API_URL/v1/models/{facts.model}/versions/{facts.number}'
    fetch = 'curl --fail --silent --show-error --header "Authorization: Bearer $EXPUNGE_API_KEY"'
    told = [
        "Get the operator's `trusted-keys.json` and `model-signing-p256.pub` through a channel "
        "that you trust; keys from the service itself prove nothing.",
    ]
    if facts.state == VersionState.CERTIFIED:
        told += [
            "Download; the file gets its name only after it is verified:",
            _shell(f"expunge download {facts.model} --trusted trusted-keys.json"),
        ]
    else:
        told += [
            "The weights are no longer served; the certificate is:",
            _shell(f'{fetch} --output {bundle} {url}/certificate"'),
        ]
    told += [
        "The certificate, offline and at any later time:",
        _shell(f"expunge verify {bundle} --weights {weights} --trusted trusted-keys.json"),
    ]
    if facts.state == VersionState.CERTIFIED:
        told += [
            "The file's OpenSSF Model Signing v1 signature, with independent code "
            "(`pip install model-signing`):",
            _shell(
                f'{fetch} --output {signature} {url}/model.sig"',
                f"model_signing verify key {weights} --signature {signature} "
                "--public_key model-signing-p256.pub",
            ),
        ]
    return told


def _section(title: str, paragraphs: Iterable[str]) -> str:
    return "\n\n".join((f"## {title}", *paragraphs))


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"* {item}" for item in items)


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(("| | |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in rows.items())))


def _figures(measured: Mapping[str, Any]) -> str:
    return _table(
        {
            name.replace("_", " "): f"{value:.6g}" if isinstance(value, float) else str(value)
            for name, value in measured.items()
        }
    )


def _code(document: Mapping[str, Any]) -> str:
    """Format JSON in a fence that its text cannot close."""
    text = json.dumps(document, indent=2, sort_keys=True)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}json\n{text}\n{fence}"


def _shell(*commands: str) -> str:
    return "\n".join(("```sh", *commands, "```"))

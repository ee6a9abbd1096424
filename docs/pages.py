"""Writes the pages that the code describes: ``pages.py FOLDER``, which ``make docs`` runs.

They are ``openapi.json`` with the page that shows it, the settings, the definitions of models, and
the problems. ``docs/theme/hooks.py`` adds them to the site.
"""

import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from http import HTTPStatus
from pathlib import Path
from typing import Any, get_origin

from app.api.models import ModelBody, RecipeBody
from app.api.plans import PolicyBody
from app.api.protocol.errors import PROBLEM_TYPES
from app.api.protocol.schemas import attributes_of
from app.cli.application import create_app
from app.cli.commands.service import init
from app.runtime.embedded import EmbeddedServers
from app.runtime.settings import Settings, variable_of
from app.services import open_services

_API = """# API reference

Calls carry `Authorization: Bearer KEY`; [HTTP](http.md) says what holds for all of them, and
[problems](problems.md) what errors mean. The service has this document at `/openapi.json`.

<swagger-ui src="openapi.json" supportedSubmitMethods="[]"/>
"""
_SETTINGS = """# Settings

Settings are environment variables, all optional. Each may also be a file of the variable's name,
in upper or lower case, in the directory `EXPUNGE_SECRETS_DIR` (`/run/secrets` if it exists). A
variable wins over a file.

* **A list** has commas between its items, or is JSON:
  `EXPUNGE_TRUSTED_PROXIES=10.0.0.0/8,127.0.0.1`.
* **A mapping** is a list of `NAME=VALUE`, or a JSON object:
  `EXPUNGE_OIDC_SCOPES=privacy-desk=forget:write,privacy-desk=forget:read`. A name or value that
  contains a comma, or a name that contains `=`, needs JSON.
* **A wrong setting ends the program** before it does anything, with a line for each that names it.
  A name that begins with `EXPUNGE_` and is not on this page is refused, and the nearest one is
  suggested: a misspelt `EXPUNGE_KEY_STORE_DIR` would leave the keys beside the data. Kubernetes
  invents such names for a service called `expunge`, unless the pod has `enableServiceLinks: false`.

With your own servers, run `expunge init` once, then `expunge serve`, `expunge worker` on any number
of machines, and `expunge dispatcher`. All of them must share the objects and their key store: on a
shared file system, or in S3 with a shared directory of keys. `expunge up` runs everything on one
machine; a second one in the same data directory, or with a port in use, says so and changes
nothing. [Operations](operations/README.md) has readiness, metrics, logs, deadlines and alerts.
"""
# A setting belongs to the first heading that lists its name or what it begins with.
_GROUPS = {
    "Data and servers": "data_dir database_ migration_ redis_ key_",
    "The command line": "api_",
    "Runs": "allowed_ devices lease_ max_attempts worker_",
    "Logs and traces of the programs ([more](how-to/traces.md))": "environment log_ traces",
    "The transparency log ([more](log.md))": "witnesses",
    "Who may call, and how often ([more](access.md))": "oidc_ requests_ failed_ trusted_ metrics_",
    "Objects in S3": "s3_",
    "Keys in a service ([more](blobs.md#keys-in-a-service))": "kms_ vault_",
    "Imports ([more](how-to/import.md))": "import_",
    "Publishing ([more](how-to/publish.md))": "publish",
    "Callbacks ([more](callbacks.md))": "ca_ callback_",
    "OpenDSR ([more](opendsr.md))": "opendsr_",
    "The API ([more](http.md))": "",
}
_DEFINITIONS = """# Definitions: model, recipe, policy

`expunge model create FILE` and `POST /v1/models` take a JSON object such as

```json
{
  "name": "digits-mlp",
  "dataset": "digits",
  "architecture": {"name": "mlp", "options": {"hidden": [64]}},
  "recipe": {"epochs": 30, "batch_size": 64, "learning_rate": 0.1},
  "policy": {"epsilon": 1.0, "delta": 1e-5, "mechanism": "gradient_clipping"}
}
```

What is left out has its default. [Models and mechanisms](models.md) explains architectures and
mechanisms.
"""
_PARTS = (
    ("The model", "", ModelBody),
    (
        "The recipe",
        "How the model is trained, first and again after its target is met. A `linear_head` is "
        "trained by plain descent, with defaults of its own: optimizer `sgd`, schedule `constant`, "
        "momentum 0, the largest learning_rate that its loss allows, and weight_decay 0.0001, or "
        "0.01 where the policy names a mechanism that adds noise "
        "([weight decay of heads](models.md#weight-decay-of-heads)). A `ridge_head` is solved, and "
        "takes held_out_fraction alone.",
        RecipeBody,
    ),
    (
        "The policy",
        "What forget requests are owed. `expunge model policy NAME FILE` and "
        "`PATCH /v1/models/{name}` change the given fields from the model's next run on, except "
        "`adaptive` and `first_release`.",
        PolicyBody,
    ),
)
_REQUIRED = ("name", "dataset", "architecture")
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_PROBLEMS = """# Problems

Every error is a JSON document of media type `application/problem+json`
([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)) with the members `type`, `title`, `status` and
`detail`; some types have more. Decide by `type`, which keeps its meaning; `detail` is for people
and may change its wording. No problem contains record content, weights or keys.
"""


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of a service with default settings, made for this purpose."""
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


def laid_out(node: Any, depth: int = 0) -> str:  # noqa: ANN401 - any JSON
    """Return JSON with a line for each part of a call or an object, which a review can read."""
    text = json.dumps(node, ensure_ascii=False)
    if depth == 5 or len(text) < 90 or not isinstance(node, dict | list):
        return text
    pad = "\n" + " " * (depth + 1)
    if isinstance(node, list):
        return f"[{pad}{f',{pad}'.join(laid_out(part, depth + 1) for part in node)}{pad[:-1]}]"
    members = (f"{json.dumps(name)}: {laid_out(part, depth + 1)}" for name, part in node.items())
    return f"{{{pad}{f',{pad}'.join(members)}{pad[:-1]}}}"


def settings() -> str:
    """Return the page of settings."""
    starts = {start: heading for heading, line in _GROUPS.items() for start in line.split() or [""]}
    rows: dict[str, list[str]] = {heading: [] for heading in _GROUPS}
    for name, told in attributes_of(Settings).items():
        field = Settings.model_fields[name]
        kind = {tuple: " (a list)", dict: " (a mapping)"}.get(get_origin(field.annotation), "")
        text = told.replace("``", "`").rstrip(".")
        meaning = text[0].upper() + text[1:] + kind
        value = field.default
        if isinstance(value, tuple):
            value = ",".join(value)
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        shown = str(value).lower() if isinstance(value, bool) else value
        heading = starts[max((start for start in starts if name.startswith(start)), key=len)]
        default = "–" if shown in (None, "", {}) else str(shown)
        rows[heading].append(_row(f"`{variable_of(name)}`", meaning, default))
    head = ["| variable | meaning | default |", "| --- | --- | --- |"]
    parts = [_SETTINGS]
    for heading, lines in rows.items():
        parts += [f"## {heading}", "", *head, *lines, ""]
    return "\n".join(parts)


def definitions() -> str:
    """Return the page of definitions."""
    parts = [_DEFINITIONS]
    for title, text, body in _PARTS:
        parts += [f"## {title}", "", *([text, ""] if text else [])]
        parts += ["| field | type | meaning | default |", "| --- | --- | --- | --- |"]
        for name, member in body.model_json_schema()["properties"].items():
            if "$ref" in member:
                cells = ["object", f"The {name}, [below](#the-{name})", "its defaults"]
            else:
                meaning = member["description"]
                meaning = meaning[:1].upper() + meaning[1:].rstrip(".")
                bounds = [f"{word} {member[key]}" for key, word in _BOUNDS.items() if key in member]
                default = member.get("default")
                shown = "–" if default in (None, {}) else f"`{json.dumps(default)}`"
                shown = "required" if name in _REQUIRED else shown
                cells = [_type(member), "; ".join([meaning, *bounds]), shown]
            parts.append(_row(f"`{name}`", *cells))
        parts.append("")
    return "\n".join(parts)


def problems() -> str:
    """Return the page of problems."""
    parts = [_PROBLEMS]
    for kind in PROBLEM_TYPES.values():
        example = json.dumps(kind.body(kind.detail, kind.members), indent=2, ensure_ascii=False)
        about = f"`{kind.uri}`, {kind.status} {HTTPStatus(kind.status).phrase}. {kind.meaning}"
        parts += [f"## {kind.name}", "", about, "", f"```json\n{example}\n```", ""]
    return "\n".join(parts)


def _type(schema: dict[str, Any]) -> str:
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " or ".join(_type(part) for part in schema[union])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "$ref" in schema:
        return f"[{schema['$ref'].rpartition('/')[2]}](api.md)"
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return f"{kind} ({schema['format']})" if "format" in schema else kind


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(folder: Path) -> None:
    """Write all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "openapi.json": laid_out(openapi()) + "\n",
        "api.md": _API,
        "settings.md": settings(),
        "definitions.md": definitions(),
        "problems.md": problems(),
    }.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

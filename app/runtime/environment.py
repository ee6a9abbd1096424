"""The texts of variables: which names are settings, and how lists and mappings are written."""

import difflib
import json
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

PREFIX = "EXPUNGE_"
SECRETS_DIR_VARIABLE = "EXPUNGE_SECRETS_DIR"
_NOT_SETTINGS = {
    SECRETS_DIR_VARIABLE,
    "EXPUNGE_SUPERVISOR_PID",
    # docker-compose.yml reads these, so they may be in the environment where it is started.
    "EXPUNGE_PUBLISH",
    "EXPUNGE_WORKER_CPUS",
    "EXPUNGE_WORKER_MEMORY_LIMIT",
}
_NOT_SETTINGS_PREFIXES = ("EXPUNGE_TEST_", "EXPUNGE_BENCH_")


def variable_of(field: str) -> str:
    """Return the variable that sets a field of the settings."""
    return PREFIX + field.upper()


def unknown_names(names: Iterable[str], fields: Iterable[str]) -> Iterator[str]:
    """Say of each name with our prefix that it sets nothing, and which one may be meant."""
    known = [*map(variable_of, fields), *_NOT_SETTINGS]
    for name in sorted(names):
        variable = name.upper()
        if not variable.startswith(PREFIX) or variable in known:
            continue
        if variable.startswith(_NOT_SETTINGS_PREFIXES):
            continue
        near = difflib.get_close_matches(variable, known, n=1, cutoff=0.75)
        advice = f"did you mean {near[0]}?" if near else "the documentation lists all"
        yield f"{name}: there is no such setting; {advice}"


def nameless_files(names: Iterable[str], fields: Iterable[str]) -> Iterator[str]:
    """Say of each file that is named as a setting without our prefix that it sets nothing."""
    known = set(fields)
    for name in sorted(names):
        if name.lower() in known:
            yield f"{name}: a file of this name sets nothing; did you mean {variable_of(name)}?"


def decoded(text: str, annotation: Any) -> Any:  # noqa: ANN401 - whatever the annotation is
    """Return the list or mapping that a text holds, or the text if the annotation is neither.

    Either JSON, or items with commas between them; those of a mapping are NAME=VALUE.

    Raises:
        ValueError: it is neither.
    """
    kind = get_origin(annotation)
    if kind not in (tuple, dict):
        return text
    if text.lstrip().startswith(("[", "{")):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError("is not valid JSON") from error
    items = [item.strip() for item in text.split(",") if item.strip()]
    if kind is tuple:
        return items
    pairs = [(name.strip(), found.strip()) for name, _, found in (i.partition("=") for i in items)]
    if not all(name and found for name, found in pairs):
        raise ValueError("must be NAME=VALUE pairs with commas between them, or a JSON object")
    if get_origin(get_args(annotation)[1]) is tuple:
        return {name: [found for other, found in pairs if other == name] for name, _ in pairs}
    if len(dict(pairs)) != len(pairs):
        raise ValueError("has the same name twice")
    return dict(pairs)

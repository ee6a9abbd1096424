"""``expunge model check``: whether a network of one's own will work, and with which mechanisms."""

import json
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.commands.guarantees import parsed
from app.cli.files import json_file
from app.cli.options import option
from app.cli.output import wants_json
from app.domain.architectures import ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.extras import WORKER, require
from app.domain.tasks import catalogue
from app.runtime.processes.starting import python_command


def check(
    model: Annotated[
        str, typer.Argument(help="The factory's import path, or the file of a model's definition.")
    ],
    *,
    shape: Annotated[
        str | None,
        option("Shape of a record's features: 21, or 3,32,32. A task's inputs need none."),
    ] = None,
    classes: Annotated[int | None, option("Number of classes, of features.")] = None,
    option: Annotated[
        list[str] | None, option("One of the architecture's options, NAME=VALUE; may be repeated.")
    ] = None,
    dtype: Annotated[str, option("The features' dtype: float32, float64 or uint8.")] = "float32",
    scale: Annotated[
        float | None, option("The features' scale; by default 1/255 for uint8, else 1.")
    ] = None,
    vocabulary: Annotated[
        int | None, option("For tokens: how many different ones there are.")
    ] = None,
    data: Annotated[
        Path | None, option("A file of rows: which records can the task not read?")
    ] = None,
    record_id: Annotated[str, option("The column of their ids.")] = "record_id",
) -> None:
    """Try a network and a task of your own on made-up records, mechanism by mechanism.

    They are built, trained and unlearned here as workers would do it, with all that their code
    raises shown in full. No service is needed. Exits with 1 if no mechanism works, or if a row of
    the file cannot be encoded.
    """
    require("torch", extra=WORKER)
    definition = _definition(model, parsed("--option", option))
    document = definition.get("task") or {"name": "classification"}
    if "inputs" not in document:
        document = _on_features(document, shape, classes, dtype, scale, vocabulary)
    spec = catalogue.from_json(document)
    order = {
        "architecture": definition["architecture"],
        "task": spec.to_json(),
        "schema": vars(spec.schema()),
        "data": None if data is None else str(data),
        "record_id": record_id,
        "json": wants_json(),
    }
    done = subprocess.run(python_command("workers", "check", json.dumps(order)), check=False)
    raise typer.Exit(min(abs(done.returncode), 1))


def _definition(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return a definition of at least an architecture, from a file or for a factory."""
    definition: dict[str, Any] = {
        "architecture": {"name": "custom", "factory": model, "options": options}
    }
    if model.endswith(".json"):
        definition = json_file(Path(model))
    if "architecture" not in definition:
        raise InvalidInputError(f"{model} is not a model's definition: it has no architecture")
    architecture = ArchitectureSpec.from_json(definition["architecture"])
    if architecture.on_features:
        raise InvalidInputError(
            "a network on a frozen backbone is tried by the service, which has the backbone: leave "
            "the backbone out"
        )
    return definition | {"architecture": architecture.to_json()}


def _on_features(
    document: dict[str, Any],
    shape: str | None,
    classes: int | None,
    dtype: str,
    scale: float | None,
    vocabulary: int | None,
) -> dict[str, Any]:
    """Return a task on one column of features."""
    classified = document["name"] == "classification"
    if shape is None or (classes is None and classified):
        raise InvalidInputError("give --shape and --classes, or a definition whose task has inputs")
    features: dict[str, Any] = {
        "name": "features",
        "kind": "array",
        "shape": list(parsed_shape(shape)),
        "dtype": dtype,
    }
    if vocabulary is not None:
        features |= {"dtype": "int64", "vocabulary": vocabulary}
    if scale is not None:
        features["scale"] = scale
    if classified and classes is not None:
        document = {**document, "target": {"column": "label", "classes": [*range(classes)]}}
    return {**document, "inputs": [features]}


def parsed_shape(text: str) -> tuple[int, ...]:
    """Parse the sides of a shape, or raise ``InvalidInputError``."""
    try:
        return tuple(int(side) for side in text.replace("x", ",").split(","))
    except ValueError as error:
        raise InvalidInputError(
            f"--shape {text}: expected whole numbers such as 21 or 3,32,32"
        ) from error

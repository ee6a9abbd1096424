"""``expunge model check`` and ``backbone add``: networks tried here as workers would do it."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.commands.guarantees import parsed
from app.cli.commands.resources import BackboneName, Key
from app.cli.connection import service
from app.cli.files import json_file, read_weights
from app.cli.options import existing_file, option, whole_numbers
from app.cli.output import show, wants_json
from app.domain.architectures import POOLS, ArchitectureSpec, FeatureLayer
from app.domain.errors import ExpungeError, InvalidInputError
from app.domain.extras import WORKER, require
from app.domain.schema import InputSchema
from app.domain.tasks import catalogue
from app.runtime.processes.starting import python_command

_STD = "std"


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
    order = {
        "architecture": definition["architecture"],
        "task": catalogue.from_json(document).to_json(),
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
        "shape": list(whole_numbers("--shape", shape)),
        "dtype": dtype,
    }
    if vocabulary is not None:
        features |= {"dtype": "int64", "vocabulary": vocabulary}
    if scale is not None:
        features["scale"] = scale
    if classified and classes is not None:
        document = {**document, "target": {"column": "label", "classes": [*range(classes)]}}
    return {**document, "inputs": [features]}


def add(
    name: BackboneName,
    *,
    factory: Annotated[
        str,
        option(
            "Import path of what builds the network: of your own, or "
            "expunge.backbones: with torchvision, timm, transformers, efficientnet_lite0 or "
            "resemblyzer."
        ),
    ],
    shape: Annotated[str, option("Shape of a record's features: 32,32,3.")],
    layer: Annotated[
        list[str] | None,
        option(
            "A module whose averaged output is a part of the features; may be repeated. "
            "2x2: averages over the quarters of an image. std: with standard deviations. By "
            "default the network's own output.",
            metavar="NAME[:2x2][:std]",
        ),
    ] = None,
    option: Annotated[
        list[str] | None, option("One of the factory's options, NAME=VALUE; may be repeated.")
    ] = None,
    weights: Annotated[
        Path | None,
        existing_file(
            "A safetensors file, or a state dict or checkpoint that torch.save wrote; by "
            "default the weights that an installed package contains."
        ),
    ] = None,
    key: Key = None,
    vocabulary: Annotated[
        int | None, option("For tokens: how many different ones there are.")
    ] = None,
    classes: Annotated[int, option("Number of classes of the public task.")] = 1000,
    source: Annotated[
        str | None, option("Where the weights come from; certificates' readers see it.")
    ] = None,
) -> None:
    """Define BACKBONE and upload its weights.

    The network is built and tried on random records here, as workers would do it, with all that its
    code raises shown in full; PyTorch and the network's library must be installed. You assert that
    the weights do not depend on the training records of models on this backbone.
    """
    require("torch", extra=WORKER)
    layers = [_layer(text).to_json() for text in layer or []]
    architecture = ArchitectureSpec("custom", parsed("--option", option), factory)
    schema = InputSchema(
        shape=whole_numbers("--shape", shape),
        dtype="float32" if vocabulary is None else "int64",
        classes=classes,
        vocabulary=vocabulary,
    )
    order = {
        "name": name,
        "factory": factory,
        "options": dict(architecture.options),
        "layers": layers,
        "schema": vars(schema),
    }
    content = b"" if weights is None else read_weights(weights, key)
    found, prepared = _prepared(order, content)
    source = source or found["source"]
    if source is None:
        raise InvalidInputError("say where the weights come from, with --source")
    definition = {
        "name": name,
        "architecture": architecture.to_json(),
        "input": {"shape": list(schema.shape)},
        "classes": classes,
        "layers": layers,
        "features": found["features"],
        "source": source,
    }
    with service() as client:
        client.define_backbone(definition)
        try:
            answer = client.upload_backbone(name, prepared)
        except ExpungeError:
            client.delete_backbone(name)
            raise
        show(answer)


def _layer(text: str) -> FeatureLayer:
    module, *rest = text.split(":")
    pool = rest.pop(0) if rest and rest[0] in POOLS else POOLS[0]
    if rest not in ([], [_STD]):
        raise InvalidInputError(
            f"--layer {text}: expected NAME, NAME:2x2, NAME:std or NAME:2x2:std"
        )
    return FeatureLayer(module, pool, std=bool(rest))


def _prepared(order: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return what was found, and the weights to upload."""
    done = subprocess.run(
        python_command("workers", "backbone"),
        input=json.dumps(order).encode() + b"\n" + content,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:  # it has said why
        raise InvalidInputError("the network could not be tried: see above")
    line, _, weights = done.stdout.partition(b"\n")
    found: dict[str, Any] = json.loads(line)
    if "error" in found:
        raise InvalidInputError(found["error"])
    if found["left_out"]:
        count, shown = found["left_out_count"], ", ".join(found["left_out"])
        more = ", …" if count > len(found["left_out"]) else ""
        typer.echo(
            f"left out, as the network has no such tensors ({count}): {shown}{more}", err=True
        )
    return found, weights

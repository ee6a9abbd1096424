"""Commands over HTTP: backbones, models, downloads."""

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.connection import service, show_answer
from app.cli.files import json_file
from app.cli.options import Trusted, argument, option
from app.cli.output import conclude, say
from app.cli.waiting import Wait, show_model
from app.cli.weights import read_weights
from app.domain.architectures import network_in_words
from app.domain.errors import ConfigurationError
from app.domain.extras import WORKER, require
from app.runtime.processes.starting import python_command
from app.runtime.settings import Settings

if TYPE_CHECKING:
    from app.evidence.certificates.verification import VerifiedStep

dataset = typer.Typer(help="Define datasets and push records.", no_args_is_help=True)
model = typer.Typer(help="Define models and upload weights.", no_args_is_help=True)
backbone = typer.Typer(help="Define public backbones and upload weights.", no_args_is_help=True)

_DATASETS = ("name", "records", "forgotten_not_yet_erased", "erased", "created_at")
_MODELS = (
    "name",
    "dataset",
    "task.name",
    "network",
    "certified.number",
    "capacity",
    "latest_run.state",
)
_BACKBONES = ("name", "architecture.name", "features", "size_bytes", "created_at")
ModelName = Annotated[str, argument("MODEL", "The model's name.")]
DatasetName = Annotated[str, argument("DATASET", "The dataset's name.")]
BackboneName = Annotated[str, argument("BACKBONE", "The backbone's name.")]
Weights = Annotated[
    Path,
    argument(
        "FILE",
        "A safetensors file, or a state dict or checkpoint that torch.save wrote.",
        exists=True,
        dir_okay=False,
    ),
]
Key = Annotated[str | None, option("In a checkpoint: where the weights are, such as state_dict.")]


@dataset.command("show")
def dataset_show(name: DatasetName) -> None:
    """Show a dataset, its columns and its counts."""
    show_answer(lambda client: client.dataset(name))


@dataset.command("list")
def dataset_list() -> None:
    """List all datasets."""
    show_answer(lambda client: client.datasets(), _DATASETS)


@model.command("upload")
def model_upload(name: ModelName, file: Weights, *, key: Key = None, wait: Wait = False) -> None:
    """Upload weights that were trained elsewhere to MODEL.

    The model must be defined with "weights": "upload". The weights are certified before a release.
    A file of PyTorch's own is converted here, and only tensors are read from it, never code.
    """
    # Other commands need no mechanisms.
    from app.domain.plan import Plan  # noqa: PLC0415
    from app.planning.mechanisms.catalogue import mechanism_named  # noqa: PLC0415

    with service() as client:
        shown = client.upload_weights(name, read_weights(file, key))
        plan = Plan.from_json(shown["latest_run"]["plan"])
        worth = mechanism_named(plan.mechanism).worth_of_upload(
            plan.predicted.get("surviving_information_bits")
        )
        typer.echo(f"{file.name}: {worth}", err=True)
        show_model(client, shown, wait=wait)


@model.command("policy")
def model_policy(
    name: ModelName,
    file: Annotated[Path, argument("FILE", "The fields to change, as JSON.", exists=True)],
) -> None:
    """Change fields of MODEL's policy, from its next run on."""
    show_answer(lambda client: client.change_policy(name, json_file(file)))


@model.command("recompute")
def model_recompute(name: ModelName) -> None:
    """Compute the newest version of MODEL again and compare the files; exit with 1 if they differ.

    For models that are a function of their records (sufficient_statistics, exact_training). Reads
    the retained records from the stores, and neither weights nor sums; run it where a worker runs.
    """
    require("torch", extra=WORKER)
    command = python_command("workers", "recompute", name)
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    if done.returncode != 0:  # it has said why
        raise typer.Exit(1)
    found = json.loads(done.stdout)
    say(f"released  {found['released']}  version {found['version']}")
    say(f"computed  {found['computed']}  from {found['records']} retained records")
    say("equal" if found["equal"] else "different")
    conclude(found)
    raise typer.Exit(0 if found["equal"] else 1)


@model.command("show")
def model_show(name: ModelName, *, wait: Wait = False) -> None:
    """Show a model, its current version and its newest run."""
    with service() as client:
        show_model(client, client.model(name), wait=wait)


@model.command("list")
def model_list() -> None:
    """List all models."""
    show_answer(
        lambda client: client.models(),
        _MODELS,
        derived={"network": lambda shown: network_in_words(shown["architecture"])},
    )


@backbone.command("define")
def backbone_define(
    file: Annotated[Path, typer.Argument(exists=True, help="The definition, as JSON.")],
) -> None:
    """Define a public backbone from a JSON FILE (see POST /v1/backbones)."""
    show_answer(lambda client: client.define_backbone(json_file(file)))


@backbone.command("upload")
def backbone_upload(name: BackboneName, file: Weights, *, key: Key = None) -> None:
    """Upload the weights of BACKBONE, once.

    You assert that they do not depend on the training records of models on this backbone.
    """
    show_answer(lambda client: client.upload_backbone(name, read_weights(file, key)))
    typer.echo(f"{file.name}: it is public, and stays in models whoever is forgotten", err=True)


@backbone.command("show")
def backbone_show(name: BackboneName) -> None:
    """Show a backbone."""
    show_answer(lambda client: client.backbone(name))


@backbone.command("list")
def backbone_list() -> None:
    """List all backbones."""
    show_answer(lambda client: client.backbones(), _BACKBONES)


def download(
    name: ModelName,
    *,
    trusted: Trusted = None,
    out: Annotated[Path, option("Output directory; created if missing.")] = Path(),
    kept: Annotated[
        Path | None,
        option("File for the log's newest checkpoint; by default log.checkpoint in --out."),
    ] = None,
) -> None:
    """Download and verify MODEL's current certified weights; resumes interrupted downloads.

    The file gets its name only after its digest and certificate are verified, in a log that has
    only grown since the last download.
    """
    steps = []

    def report(step: "VerifiedStep") -> None:
        steps.append({"step": step.name, "finding": step.finding})
        say(f"ok    {step.name:<10} {step.finding}")

    with service() as client:
        keys = _trusted_keys(trusted).read_bytes()
        files = client.download(name, out, trusted=keys, kept=kept, report=report)
        say(f"{files.weights}\n{files.certificate}")
    paths = {"weights": str(files.weights), "certificate": str(files.certificate)}
    conclude({**paths, "steps": steps})


def _trusted_keys(trusted: Path | None) -> Path:
    trusted = Settings().trusted_keys_file if trusted is None else trusted
    if not trusted.is_file():
        raise ConfigurationError(
            "pass the operator's trusted-keys.json with --trusted; get it through a channel that "
            "you trust"
        )
    return trusted

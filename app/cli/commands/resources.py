"""Commands over HTTP: datasets, imports, backbones, models, downloads."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.cli.connection import service, show_answer
from app.cli.files import json_file, read_weights
from app.cli.options import Trusted, argument, existing_file, option
from app.cli.output import conclude, say, show
from app.cli.waiting import Wait, show_import, show_model
from app.domain.architectures import network_in_words
from app.domain.errors import ConfigurationError
from app.domain.extras import WORKER, require
from app.domain.scores import figures
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
_VERSIONS = ("number", "state", "measured", "warnings", "created_at", "certificate", "reason")
_TARGETS = ("target", "kind", "wanted", "state", "version", "present", "failure")
_DERIVATIVES = ("id", "name", "version", "contact", "told_at", "acknowledged_at", "answer")
_IMPORTS = ("id", "url", "state", "rows", "total_rows", "added", "created_at", "failure_reason")
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
ImportId = Annotated[str, argument("IMPORT", "The import's id.")]
TargetName = Annotated[str, argument("TARGET", "A target's name in EXPUNGE_PUBLISHERS.")]
Yes = Annotated[bool, option("Do not ask whether you are sure.", "--yes")]


def dossier(
    kind: Annotated[
        Literal["request", "model", "dataset"], typer.Argument(help="What it is about.")
    ],
    name: Annotated[str, argument("NAME", "The request's id, or the model's or dataset's name.")],
    *,
    out: Annotated[Path, option("The zip file to write.")],
    receipt: Annotated[
        list[Path] | None, existing_file("A receipt of the request; may be repeated.")
    ] = None,
    audit: Annotated[
        list[Path] | None, existing_file("A report of 'expunge audit'; may be repeated.")
    ] = None,
) -> None:
    """Collect the signed evidence about a request, a model or a dataset in one file.

    It answers the questions of regulators for this case. 'expunge verify' checks it offline. A
    receipt has people's ids, and so has the file then: give it to nobody else.
    """
    given = [("receipts", path) for path in receipt or ()] + [("audits", p) for p in audit or ()]
    files = {f"{folder}/{path.name}": path.read_bytes() for folder, path in given}
    if len(files) < len(given):
        raise typer.BadParameter("two of the files have the same name")
    with service() as client:
        out.write_bytes(client.dossier(kind, name, given=files))
    say(f"{out}\nexpunge verify {out} --trusted trusted-keys.json")
    conclude({"dossier": str(out)})


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
def model_recompute(
    name: ModelName,
    *,
    member: Annotated[int | None, option("Only this member of an ensemble.")] = None,
) -> None:
    """Compute the newest version of MODEL again and compare the files; exit with 1 if they differ.

    For models whose certificates say "recomputable": they follow from their records, or from these
    and a seed. Reads the retained records from the stores and trains on them anew, from no earlier
    weights or sums; run it where a worker runs.
    """
    require("torch", extra=WORKER)
    only = [] if member is None else [str(member)]
    command = python_command("workers", "recompute", name, *only)
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    if done.returncode != 0:  # it has said why
        raise typer.Exit(1)
    found = json.loads(done.stdout)
    say(f"released  {found['released']}  version {found['version']}")
    say(f"computed  {found['computed']}  from {found['records']} retained records")
    say("equal" if found["equal"] else f"different: {found['differs']}")
    for what, how in found["unlike"].items():
        say(f"{what} here is {how}")
    conclude(found)
    raise typer.Exit(0 if found["equal"] else 1)


def recompute_kit(
    name: ModelName, *, out: Annotated[Path, option("Directory; created if missing.")]
) -> None:
    """Write what an auditor needs to compute the newest version of MODEL again, but its records.

    Then, on another machine and without a service: python -m expunge.recompute OUT records.parquet.
    It holds seeds of trainings: give it to auditors alone. Run it where a worker runs.
    """
    require("torch", extra=WORKER)
    command = python_command("workers", "recompute-kit", name, out)
    if subprocess.run(command, check=False).returncode != 0:
        raise typer.Exit(1)
    say(f"python -m expunge.recompute {out} records.parquet")
    conclude({"kit": str(out)})


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
        keys = trusted_keys(trusted).read_bytes()
        files = client.download(name, out, trusted=keys, kept=kept, report=report)
        say(f"{files.weights}\n{files.certificate}")
    paths = {"weights": str(files.weights), "certificate": str(files.certificate)}
    conclude({**paths, "steps": steps})


def trusted_keys(trusted: Path | None) -> Path:
    """Return the file that an option names, or the one of ``expunge init`` here."""
    trusted = Settings().trusted_keys_file if trusted is None else trusted
    if not trusted.is_file():
        raise ConfigurationError(
            "pass the operator's trusted-keys.json with --trusted; get it through a channel that "
            "you trust"
        )
    return trusted


@model.command("versions")
def model_versions(
    name: ModelName,
    *,
    state: Annotated[str | None, option("Only this state: certified, retired or shredded.")] = None,
) -> None:
    """List MODEL's released versions, newest first."""
    show_answer(
        lambda client: client.versions(name, state=state),
        _VERSIONS,
        derived={"measured": _measured},
    )


def _measured(version: Mapping[str, Any]) -> str | None:
    """Return the headline of a version's evaluation, in words."""
    found = figures(version["evaluation"])
    return " ".join(found[0]) if found else None


@model.command("retrain")
def model_retrain(name: ModelName, *, wait: Wait = False) -> None:
    """Train MODEL anew on the records that are there now.

    It serves its present version until the new one is certified. Requests that come meanwhile are
    kept.
    """
    with service() as client:
        show_model(client, client.retrain(name), wait=wait)


@model.command("refill")
def model_refill(name: ModelName, *, wait: Wait = False) -> None:
    """Train the members of MODEL that are out, all together, on the records that are left.

    Requests that come meanwhile are met beside it.
    """
    with service() as client:
        show_model(client, client.refill(name), wait=wait)


@model.command("targets")
def model_targets(name: ModelName) -> None:
    """List where MODEL is published, and from where it must still go."""
    show_answer(lambda client: client.model_targets(name), _TARGETS)


@model.command("publish")
def model_publish(name: ModelName, target: TargetName) -> None:
    """Publish MODEL's served version at TARGET from now on.

    Superseded versions are removed there. Called again, it tries again at once.
    """
    show_answer(lambda client: client.publish_model(name, target))


@model.command("unpublish")
def model_unpublish(name: ModelName, target: TargetName) -> None:
    """Remove all of MODEL from TARGET."""
    show_answer(lambda client: client.unpublish_model(name, target))


@model.command("derivatives")
def model_derivatives(name: ModelName) -> None:
    """List what others made of MODEL's versions, who was told of a withdrawal and has answered."""
    show_answer(lambda client: client.derivatives(name), _DERIVATIVES)


@model.command("add-derivative")
def model_add_derivative(
    name: ModelName,
    derivative: Annotated[str, argument("DERIVATIVE", "What the model made of it is called.")],
    *,
    version_number: Annotated[int, option("The version that it was made of.", "--version")],
    contact: Annotated[str, option("Whom to ask about it.")],
    callback: Annotated[str, option("The https URL at which its team is told, once.")],
) -> None:
    """Register a model that was made of a version of MODEL.

    Its team is told when that version is withdrawn, by a callback.
    """
    show_answer(
        lambda client: client.register_derivative(
            name, derivative, version=version_number, contact=contact, callback=callback
        )
    )


@model.command("acknowledge")
def model_acknowledge(
    name: ModelName,
    derivative: Annotated[str, argument("DERIVATIVE", "Its id.")],
    answer: Annotated[str, argument("ANSWER", "What was done.")],
) -> None:
    """Answer for a derivative of MODEL that was told of a withdrawal."""
    show_answer(lambda client: client.acknowledge_derivative(name, derivative, answer))


@model.command("archive")
def model_archive(name: ModelName, *, yes: Yes = False) -> None:
    """Take MODEL out of service and shred its weights. Its certificates stay."""
    _confirm(f"Shred the weights of model {name!r} for good?", yes)
    show_answer(lambda client: client.archive_model(name))


@model.command("delete")
def model_delete(name: ModelName) -> None:
    """Delete a model that has released nothing. Its name is free again."""
    with service() as client:
        client.delete_model(name)


@dataset.command("archive")
def dataset_archive(name: DatasetName, *, yes: Yes = False) -> None:
    """Shred the records of DATASET, of which no model may be left."""
    _confirm(f"Shred all records of dataset {name!r} for good?", yes)
    show_answer(lambda client: client.archive_dataset(name))


@dataset.command("destroy")
def dataset_destroy(
    name: DatasetName,
    *,
    backbone: Annotated[
        list[str] | None, option("A backbone that was made of its records; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, option("Only show what would go, or what is left.")] = False,
    yes: Yes = False,
) -> None:
    """Destroy DATASET and everything that was made of it here: models, backbones, published copies.

    One signed entry of the log lists them, and what cannot be reached. Called again, it tells what
    is left.
    """
    with service() as client:
        if not dry_run:
            _confirm(f"Destroy dataset {name!r} and all that was made of it, for good?", yes)
        call = client.destruction if dry_run else client.destroy_dataset
        show(call(name, backbones=backbone or ()))


@dataset.command("delete")
def dataset_delete(name: DatasetName, *, yes: Yes = False) -> None:
    """Shred a dataset that no certificate and no request names. Its name is free again."""
    _confirm(f"Shred all records of dataset {name!r} for good?", yes)
    with service() as client:
        client.delete_dataset(name)


@backbone.command("archive")
def backbone_archive(name: BackboneName, *, yes: Yes = False) -> None:
    """Shred the weights of BACKBONE, on which no model may stand any more."""
    _confirm(f"Shred the weights of backbone {name!r} for good?", yes)
    show_answer(lambda client: client.archive_backbone(name))


@backbone.command("delete")
def backbone_delete(name: BackboneName) -> None:
    """Delete a backbone that no certificate names. Its name is free again."""
    with service() as client:
        client.delete_backbone(name)


def _confirm(question: str, yes: bool) -> None:  # noqa: FBT001
    if not yes:
        typer.confirm(question, abort=True, err=True)


def import_(
    name: DatasetName,
    url: Annotated[
        str,
        argument(
            "URL",
            "s3://, gs:// or file://: a Parquet file, a folder, or a pattern with * and ?; "
            "https://: a file. It must lie under EXPUNGE_IMPORT_PREFIXES of the service.",
        ),
    ],
    *,
    wait: Wait = False,
) -> None:
    """Have the service read the Parquet files at URL into DATASET.

    New records are added, equal ones are left, changed ones are counted and left.
    """
    with service() as client:
        show_import(client, client.import_records(name, url), wait=wait)


def imports(
    name: DatasetName,
    import_id: Annotated[
        str | None, argument("[IMPORT]", "Only this one, with its faults.")
    ] = None,
    *,
    wait: Wait = False,
) -> None:
    """List DATASET's imports, or show one and how far it is."""
    with service() as client:
        if import_id is None:
            show(client.imports(name), _IMPORTS)
        else:
            show_import(client, client.import_of(name, import_id), wait=wait)


def cancel_import(name: DatasetName, import_id: ImportId) -> None:
    """Cancel an import; what it has added stays."""
    show_answer(lambda client: client.cancel_import(name, import_id))


def retry_import(name: DatasetName, import_id: ImportId, *, wait: Wait = False) -> None:
    """Let an import go on that failed or was cancelled.

    Files that are done are not read again.
    """
    with service() as client:
        show_import(client, client.retry_import(name, import_id), wait=wait)

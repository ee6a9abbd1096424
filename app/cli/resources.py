"""Commands over HTTP: datasets, backbones, models, forget requests, downloads."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from app.certificates.checkpoint import size_of
from app.certificates.verification import VerifiedStep
from app.cli.connection import service, show
from app.cli.progress import run_progress
from app.client import ApiError, ExpungeClient
from app.client.connection import Json
from app.datasets.files import RecordFile, read_record_file
from app.domain.errors import ConfigurationError, InvalidInputError
from app.download import bundle_bytes
from app.locations import trusted_keys_file
from app.settings import Settings

dataset = typer.Typer(help="Define datasets and push records.", no_args_is_help=True)
model = typer.Typer(help="Define models and upload weights.", no_args_is_help=True)
backbone = typer.Typer(help="Define public backbones and upload weights.", no_args_is_help=True)

_WAIT_S = 24 * 3600.0
Wait = Annotated[
    bool, typer.Option("--wait", help="Show progress until it has ended; exit with 1 if it fails.")
]
DatasetName = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset's name.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")]
BackboneName = Annotated[str, typer.Argument(metavar="BACKBONE", help="The backbone's name.")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id.")]
Weights = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, metavar="FILE", help="A safetensors file.")
]


@dataset.command("push")
def dataset_push(
    name: DatasetName,
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, metavar="FILE", help="A Parquet, CSV or npz file."
        ),
    ],
    *,
    classes: Annotated[
        int | None,
        typer.Option(help="For a new dataset: its number of classes; by default counted in FILE."),
    ] = None,
    offset: Annotated[
        float, typer.Option(help="For a new dataset: models see (raw - offset) * scale.")
    ] = 0.0,
    scale: Annotated[
        float | None,
        typer.Option(help="For a new dataset: see --offset; by default 1/255 for uint8, else 1."),
    ] = None,
) -> None:
    """Push the records of FILE to DATASET, which is defined if it is new.

    The file has the columns record_id, label and features, and optionally subject_id, the person
    that a record belongs to. Existing records stay unchanged.
    """
    with service() as client:
        records = read_record_file(file)
        if not _exists(client, name):
            features = _features(records, offset, scale)
            client.define_dataset(name, features=features, classes=classes or records.classes)
        show(client.push_records(name, records.parquet))


@dataset.command("show")
def dataset_show(name: DatasetName) -> None:
    """Show a dataset and its counts."""
    with service() as client:
        show(client.dataset(name))


@dataset.command("list")
def dataset_list() -> None:
    """List all datasets."""
    with service() as client:
        show(client.datasets())


@model.command("create")
def model_create(
    file: Annotated[Path, typer.Argument(exists=True, help="The definition, as JSON.")],
    *,
    wait: Wait = False,
) -> None:
    """Define a model from a JSON FILE (see POST /v1/models) and start its training."""
    with service() as client:
        definition = _json_file(file)
        _show_model(client, client.define_model(definition), wait=wait)


@model.command("upload")
def model_upload(name: ModelName, file: Weights, *, wait: Wait = False) -> None:
    """Upload weights that were trained elsewhere to MODEL.

    The model must be defined with "weights": "upload". The weights are certified before a release.
    """
    with service() as client:
        _show_model(client, client.upload_weights(name, file.read_bytes()), wait=wait)


@model.command("policy")
def model_policy(
    name: ModelName,
    file: Annotated[
        Path,
        typer.Argument(exists=True, metavar="FILE", help="The fields to change, as JSON."),
    ],
) -> None:
    """Change fields of MODEL's policy, from its next run on."""
    with service() as client:
        show(client.change_policy(name, _json_file(file)))


@model.command("show")
def model_show(name: ModelName, *, wait: Wait = False) -> None:
    """Show a model, its current version and its newest run."""
    with service() as client:
        _show_model(client, client.model(name), wait=wait)


@model.command("list")
def model_list() -> None:
    """List all models."""
    with service() as client:
        show(client.models())


@backbone.command("define")
def backbone_define(
    file: Annotated[Path, typer.Argument(exists=True, help="The definition, as JSON.")],
) -> None:
    """Define a public backbone from a JSON FILE (see POST /v1/backbones)."""
    with service() as client:
        show(client.define_backbone(_json_file(file)))


@backbone.command("upload")
def backbone_upload(name: BackboneName, file: Weights) -> None:
    """Upload the weights of BACKBONE, once.

    You assert that they do not depend on the training records of models on this backbone.
    """
    with service() as client:
        show(client.upload_backbone(name, file.read_bytes()))


@backbone.command("list")
def backbone_list() -> None:
    """List all backbones."""
    with service() as client:
        show(client.backbones())


def forget(
    dataset_name: DatasetName,
    *,
    record: Annotated[list[str] | None, typer.Option(help="A record_id; may be repeated.")] = None,
    subject: Annotated[
        list[str] | None, typer.Option(help="A subject_id; may be repeated.")
    ] = None,
    external_id: Annotated[str | None, typer.Option(help="Your own id for this request.")] = None,
    callback: Annotated[
        list[str] | None, typer.Option(help="A URL that receives every change; may be repeated.")
    ] = None,
    receipt: Annotated[
        Path | None, typer.Option(help="File for the receipt, for 'expunge verify --receipt'.")
    ] = None,
    wait: Wait = False,
) -> None:
    """Ask every model trained on DATASET to forget records or subjects.

    Once this returns, no new run reads those records. The answer lists every affected model; each
    finishes with a certificate. Repeating an --external-id shows the existing request.
    """
    with service() as client:
        request = client.forget(
            dataset_name,
            record_ids=record or [],
            subject_ids=subject or [],
            external_id=external_id,
            status_callback_urls=callback or [],
        )
        if receipt is not None:
            _write_receipt(receipt, request, record_ids=record or [], subject_ids=subject or [])
        _show_request(client, request, wait=wait)


def certificates(
    request_id: RequestId,
    *,
    out: Annotated[Path, typer.Option(help="Output directory; created if missing.")] = Path(),
    since: Annotated[
        Path | None,
        typer.Option(exists=True, help="An older checkpoint, for 'verify --consistent-with'."),
    ] = None,
) -> None:
    """Download a forget request's certificates, for use with its receipt."""
    with service() as client:
        size = None if since is None else size_of(since.read_bytes())
        out.mkdir(parents=True, exist_ok=True)
        for certificate in client.certificates_of(request_id, since=size):
            path = out / f"{request_id}-{certificate['model']}.certificate.json"
            path.write_bytes(bundle_bytes(certificate["bundle"]))
            typer.echo(path)


def _write_receipt(
    path: Path, request: Json, *, record_ids: list[str], subject_ids: list[str]
) -> None:
    """Write the receipt, readable only by the user."""
    document = {
        "request": request["id"],
        "receipt_salt": request["receipt_salt"],
        "records": request["records"],
        "record_ids": record_ids,
        "subject_ids": subject_ids,
    }
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file, indent=1)


def status(request_id: RequestId, *, wait: Wait = False) -> None:
    """Show a forget request; with --wait, its live epsilon until it has ended."""
    with service() as client:
        _show_request(client, client.request(request_id), wait=wait)


def requests(
    *,
    state: Annotated[
        str | None,
        typer.Option(
            help="Only this state: accepted, unlearning, certified, completed, failed or cancelled."
        ),
    ] = None,
    model_name: Annotated[
        str | None, typer.Option("--model", help="Only those with an obligation of this model.")
    ] = None,
    external_id: Annotated[
        str | None, typer.Option(help="Only the one with this --external-id.")
    ] = None,
) -> None:
    """List forget requests, newest first."""
    with service() as client:
        show(client.requests(state=state, model=model_name, external_id=external_id))


def retry(request_id: RequestId) -> None:
    """Retry a failed request."""
    with service() as client:
        show(client.retry(request_id))


def cancel(
    request_id: RequestId,
    *,
    restore: Annotated[
        bool,
        typer.Option("--restore", help="Allow later trainings to use its records again."),
    ] = False,
) -> None:
    """Cancel a request before any run has started on it."""
    with service() as client:
        show(client.cancel(request_id, restore=restore))


def download(
    name: ModelName,
    *,
    trusted: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="The operator's trusted-keys.json; by default the one from 'expunge init' here.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output directory; created if missing.")] = Path(),
    kept: Annotated[
        Path | None,
        typer.Option(
            help="File for the log's newest checkpoint; by default log.checkpoint in --out."
        ),
    ] = None,
) -> None:
    """Download and verify MODEL's current certified weights; resumes interrupted downloads.

    The file gets its name only after its digest and certificate are verified, in a log that has
    only grown since the last download.
    """

    def report(step: VerifiedStep) -> None:
        typer.echo(f"ok    {step.name:<10} {step.finding}")

    with service() as client:
        keys = _trusted_keys(trusted).read_bytes()
        out.mkdir(parents=True, exist_ok=True)
        files = client.download(name, out, trusted=keys, kept=kept, report=report)
        typer.echo(f"{files.weights}\n{files.certificate}")


def _trusted_keys(trusted: Path | None) -> Path:
    trusted = trusted_keys_file(Settings()) if trusted is None else trusted
    if not trusted.is_file():
        raise ConfigurationError(
            "pass the operator's trusted-keys.json with --trusted; get it through a channel that "
            "you trust"
        )
    return trusted


def _exists(client: ExpungeClient, name: str) -> bool:
    try:
        client.dataset(name)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


def _features(records: RecordFile, offset: float, scale: float | None) -> dict[str, Any]:
    default = 1 / 255 if records.dtype == "uint8" else 1.0
    return {
        "shape": list(records.shape),
        "dtype": records.dtype,
        "offset": offset,
        "scale": default if scale is None else scale,
    }


def _json_file(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text())
    except ValueError as error:
        raise InvalidInputError(f"{file} does not hold JSON") from error
    if not isinstance(document, dict):
        raise InvalidInputError(f"{file} does not hold a JSON object")
    return document


def _show_model(client: ExpungeClient, shown: Json, *, wait: bool) -> None:
    if wait:
        with run_progress() as update:
            shown = client.wait_for_model(
                shown["name"],
                timeout_s=_WAIT_S,
                on_change=lambda run: update(run, run["kind"]),
            )
    show(shown)
    run = shown["latest_run"]
    if wait and run is not None and run["state"] in ("failed", "cancelled"):
        raise InvalidInputError(f"the run {run['state']}: {run['failure_reason'] or 'retry it'}")


def _show_request(client: ExpungeClient, shown: Json, *, wait: bool) -> None:
    if wait:
        with run_progress() as update:
            shown = client.wait_for_request(
                shown["id"],
                timeout_s=_WAIT_S,
                on_change=lambda request, run: update(run, request["state"]),
            )
    show(shown)
    if wait and shown["state"] == "failed":
        raise InvalidInputError(f"the request failed: {shown['failure_reason']}")

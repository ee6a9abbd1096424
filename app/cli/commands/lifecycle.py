"""Commands over HTTP: what happens to models, datasets and backbones after their definition."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.cli.commands.resources import (
    BackboneName,
    DatasetName,
    ModelName,
    backbone,
    dataset,
    model,
)
from app.cli.connection import service, show_answer
from app.cli.options import argument, option
from app.cli.waiting import Wait, show_model
from app.domain.tasks.words import figures

__all__ = ["backbone", "dataset", "model"]

_VERSIONS = ("number", "state", "measured", "warnings", "created_at", "certificate", "reason")
_TARGETS = ("target", "kind", "wanted", "state", "version", "present", "failure")
TargetName = Annotated[str, argument("TARGET", "A target's name in EXPUNGE_PUBLISHERS.")]
Yes = Annotated[bool, option("Do not ask whether you are sure.", "--yes")]


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


@dataset.command("delete")
def dataset_delete(name: DatasetName) -> None:
    """Delete a dataset that never held a record. Its name is free again."""
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

"""What every script here asks of the service: train on a table, forget, give the weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import expunge

TRUSTED = Path(".expunge/keys/trusted-keys.json")
"""The operator's keys: here of the service that runs in this folder."""


def trained(
    frame: pd.DataFrame,
    definition: Mapping[str, Any],
    columns: Mapping[str, str],
    *,
    record_id: str,
    subject_id: str | None = None,
) -> expunge.Client:
    """Push a table to a new dataset; return once the model has a certified version."""
    client = expunge.connect()
    dataset = definition["dataset"]
    client.define_dataset(dataset, columns, record_id=record_id, subject_id=subject_id)
    client.push_records(dataset, frame.to_parquet())
    client.define_model(definition)
    model = client.wait_for_model(definition["name"], timeout_s=3600)
    if model["certified"] is None:
        raise RuntimeError(model["latest_run"]["failure_reason"])
    return client


def forgotten(client: expunge.Client, dataset: str, **ids: Sequence[str]) -> None:
    """Have records or persons forgotten; return once every model has."""
    client.wait_for_request(client.forget(dataset, **ids)["id"], timeout_s=3600)


def published(client: expunge.Client, name: str, *factories: str) -> tuple[Path, torch.nn.Module]:
    """Return the file of the current version and its network, once the certificate holds."""
    weights = client.download(name, Path("releases"), trusted=TRUSTED.read_bytes()).weights
    model = expunge.load(weights, trusted=TRUSTED, factories=factories)
    print(expunge.verify(weights, trusted=TRUSTED)["model"])
    return weights, model

"""``expunge.register``: from a table and a network in a notebook to a certified model.

The service trains a new network of the same shape on the rows that were pushed: the numbers that
are in the given module are not used, because no certificate could say what they remember.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import safetensors.torch
from torch import nn

from app.client import ApiError, ExpungeClient
from app.client.answers import Json
from app.client.client import configured_client
from app.client.download import Downloaded
from app.client.published import verify
from app.domain.architectures import ArchitectureSpec
from app.domain.errors import ConflictError, InvalidInputError, NotReadyError, RunFailedError
from app.domain.tasks import catalogue
from app.domain.tasks.spec import TaskSpec
from app.registry.datasets.columns.column_types import proposed_schema
from app.registry.datasets.columns.parts import typed_parts
from app.registry.datasets.columns.sources import Source, as_table
from app.registry.datasets.files import to_parquet
from app.runtime.settings import Settings
from expunge.networks import Model, architecture_of, put_into
from workers.training.published.loading import load
from workers.training.published.model import PublishedModel

_PATIENCE_S: Final = 3600.0
Module = TypeVar("Module", bound=nn.Module)


class Registered:
    """A model of the service that has published a certified version.

    Attributes:
        name: the model's.
        dataset: the dataset's.
        client: calls the service; for all that this class has not.
    """

    def __init__(
        self,
        client: ExpungeClient,
        name: str,
        dataset: str,
        *,
        by_subject: bool,
        trusted: str | Path | bytes | None,
        factories: Sequence[str],
        timeout_s: float,
    ) -> None:
        self.client = client
        self.name = name
        self.dataset = dataset
        self._by_subject = by_subject
        self._trusted = trusted
        self._factories = tuple(factories)
        self._timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="expunge-")

    def forget(
        self,
        ids: Sequence[str] = (),
        *,
        records: Sequence[str] = (),
        external_id: str | None = None,
    ) -> Json:
        """Have persons or records forgotten by every model of the dataset; wait until it is done.

        Args:
            ids: of persons, or of records where the dataset has no column of persons.
            records: ids of records, also where there are persons.
            external_id: a ticket; the same one again is the same request.

        Returns:
            The request, in state ``completed``.

        Raises:
            ApiError: the service refuses, for example because an id is unknown.
            RunFailedError: the request failed; it is kept, and can be retried.
            TimeoutError: it has not ended in time; it goes on.
        """
        if isinstance(ids, str) or isinstance(records, str):
            raise InvalidInputError("ids is a list of ids, not one text")
        persons = list(ids) if self._by_subject else []
        rows = [*records, *(() if self._by_subject else ids)]
        request = self.client.forget(
            self.dataset, subject_ids=persons, record_ids=rows, external_id=external_id
        )
        ended = self.client.wait_for_request(request["id"], timeout_s=self._timeout_s)
        if ended["state"] != "completed":
            raise RunFailedError(f"request {ended['id']} is {ended['state']}: see its runs")
        return ended

    def download(self, directory: str | Path) -> Downloaded:
        """Download the current version and its certificate into a directory, and verify them."""
        return self.client.download(self.name, directory, trusted=self._keys())

    @property
    def certificate(self) -> dict[str, Any]:
        """What the current version's certificate states, after it was verified here."""
        files = self.download(self._folder.name)
        return verify(files.weights, certificate=files.certificate, trusted=self._trusted)

    def load(self) -> PublishedModel:
        """Return the current version as a module of PyTorch; see ``expunge.load``."""
        files = self.download(self._folder.name)
        return load(
            files.weights,
            certificate=files.certificate,
            trusted=self._trusted,
            factories=self._factories,
        )

    def load_into(self, module: Module) -> Module:
        """Copy the current version's weights into a network of yours, and return it.

        Raises:
            InvalidInputError: it has other tensors than the model.
        """
        files = self.download(self._folder.name)
        put_into(module, safetensors.torch.load_file(files.weights))
        return module

    def _keys(self) -> bytes | str | Path:
        return Settings().trusted_keys_file if self._trusted is None else self._trusted


def register(
    model: Model,
    data: Any,  # noqa: ANN401 - pandas is not among our libraries
    *,
    name: str,
    inputs: Sequence[str | Mapping[str, Any]],
    target: str | Mapping[str, Any] | None = None,
    task: str | Mapping[str, Any] = "classification",
    record_id: str | None = None,
    subject_id: str | None = None,
    dataset: str | None = None,
    options: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    client: ExpungeClient | None = None,
    trusted: str | Path | bytes | None = None,
    timeout_s: float = _PATIENCE_S,
) -> Registered:
    """Push a table, define a model, and wait until its first version is certified.

    The service is the one of EXPUNGE_API_URL and EXPUNGE_API_KEY. The same call again adds the
    table's new rows and waits for the same model; it trains nothing a second time.

    Args:
        model: a ``Linear`` layer, or a ``Sequential`` of ``Flatten``, ``Linear`` and ``ReLU``; or a
            factory that workers may import, or its path; or an architecture, as in a definition.
        data: a table of pandas, polars or Arrow.
        name: the model's.
        inputs: columns; a name alone is one of numbers. See docs/tasks.md.
        target: the column to predict. Other classes than true and false are named:
            ``{"column": …, "classes": […]}``.
        task: its name, or an object with more of its fields.
        record_id: the column, or the named index, of the records' ids; by default ``record_id``.
        subject_id: the column of the persons' ids; by default ``subject_id``, if there is one.
        dataset: its name; by default the model's.
        options: of a factory.
        recipe: how to train, as in a definition.
        policy: what is certified, as in a definition.
        client: in place of the environment's service.
        trusted: the operator's ``trusted-keys.json``, or its content; by default the one of
            ``expunge init`` here.
        timeout_s: how long to wait for a version, or for a request.

    Raises:
        InvalidInputError: the table, the task or the network does not fit; nothing was sent.
        ConflictError: a model of this name is another one.
        RunFailedError: the training failed; the message says why.
        ApiError: the service refuses.
        TimeoutError: there is no version in time; the service goes on.
    """
    table = as_table(data)
    document = _task(task, inputs, target, table)
    spec = catalogue.from_json(document)
    architecture = architecture_of(model, options, spec, spec.schema())
    ids = {"record_id": record_id, "subject_id": subject_id}
    source = _source(table, spec, ids)
    schema = proposed_schema(source, record_id=record_id, subject_id=subject_id)
    parts = typed_parts(source, schema)
    service = configured_client() if client is None else client
    rows = dataset or name
    service.define_dataset(rows, **schema.to_json())
    for part in parts:
        service.push_records(rows, to_parquet(part.records))
    definition = {
        "name": name,
        "dataset": rows,
        "task": spec.to_json(),
        "architecture": architecture.to_json(),
        "recipe": dict(recipe or {}),
        "policy": dict(policy or {}),
    }
    _define(service, definition)
    _require_version(service.wait_for_model(name, timeout_s=timeout_s))
    return Registered(
        service,
        name,
        rows,
        by_subject=schema.subject_id is not None,
        trusted=trusted,
        factories=[path for path in (architecture.factory,) if path is not None],
        timeout_s=timeout_s,
    )


def _task(
    task: str | Mapping[str, Any],
    inputs: Sequence[str | Mapping[str, Any]],
    target: str | Mapping[str, Any] | None,
    table: pa.Table,
) -> Json:
    document: Json = {"name": task} if isinstance(task, str) else dict(task)
    document["inputs"] = [
        {"name": each, "kind": "number"} if isinstance(each, str) else dict(each) for each in inputs
    ]
    if target is not None:
        document["target"] = _target(document.get("name"), target, table)
    return document


def _target(task: object, target: str | Mapping[str, Any], table: pa.Table) -> Json:
    if not isinstance(target, str):
        return dict(target)
    if task != "classification":
        return {"columns": [target]}
    if target in table.column_names and pa.types.is_boolean(table.schema.field(target).type):
        return {"column": target, "classes": [False, True]}
    raise InvalidInputError(
        f"name the classes of {target!r}, which are published with the model: "
        f'target={{"column": {target!r}, "classes": […]}}'
    )


def _source(table: pa.Table, spec: TaskSpec, ids: Mapping[str, str | None]) -> Source:
    """Return the columns that are pushed: what the task reads, and ids."""
    missing = [
        name
        for name in (*spec.columns, *ids.values())
        if name is not None and name not in table.column_names
    ]
    if missing:
        raise InvalidInputError(f"the table has no column {missing[0]!r}")
    if table.num_rows == 0:
        raise InvalidInputError("the table has no rows")
    named = [given or name for name, given in ids.items()]
    read = [name for name in table.column_names if name in {*spec.columns, *named}]
    return Source("data", table.select(read), [("data", 0)], None, "table")


def _define(service: ExpungeClient, definition: Json) -> None:
    """Define a model, unless the same one is there."""
    try:
        service.define_model(definition)
    except ApiError as error:
        if error.status != 409:
            raise
        stored = service.model(definition["name"])
        if other := _difference(definition, stored):
            raise ConflictError(
                f"model {definition['name']!r} exists with another {other}: give this one another "
                "name"
            ) from error
        if stored.get("archived_at") is not None:
            raise


def _difference(definition: Json, stored: Json) -> str | None:
    """Return the first part of a definition that a stored model has otherwise."""
    if stored["dataset"] != definition["dataset"]:
        return "dataset"
    if ArchitectureSpec.from_json(stored["architecture"]) != ArchitectureSpec.from_json(
        definition["architecture"]
    ):
        return "architecture"
    if catalogue.from_json(stored["task"]) != catalogue.from_json(definition["task"]):
        return "task"
    for part in ("recipe", "policy"):
        if any(stored[part].get(name) != value for name, value in definition[part].items()):
            return part
    return None


def _require_version(model: Json) -> None:
    run = model["latest_run"]
    if run is not None and run["state"] in ("failed", "cancelled"):
        raise RunFailedError(run["failure_reason"] or f"the run was {run['state']}")
    if model["certified"] is None:
        raise NotReadyError(f"model {model['name']!r} has published no version")

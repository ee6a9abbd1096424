"""``expunge.register``: from a table and a network in a notebook to a certified model.

The service trains a new network of the same shape on the rows that were pushed: the numbers that
are in the given module are not used, because no certificate could say what they remember.

A module that exists in one process only, such as a notebook's, cannot be trained in another. So it
must be one of the shapes that the service builds itself, or come from a factory that can be
imported where workers run.
"""

import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import safetensors.torch
import torch
from torch import nn

from app.client import ApiError, ExpungeClient
from app.client.answers import Json
from app.client.client import configured_client
from app.client.download import Downloaded
from app.client.published import verify
from app.domain.architectures import ArchitectureSpec
from app.domain.errors import ConflictError, InvalidInputError, NotReadyError, RunFailedError
from app.domain.schema import InputSchema
from app.domain.tasks import catalogue
from app.domain.tasks.spec import TaskSpec
from app.registry.datasets.columns.column_types import proposed_schema
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.columns.sources import Source, TableFile, as_table, typed_parts
from app.runtime.settings import Settings
from workers.training.networks.architectures import build
from workers.training.published.model import PublishedModel, load

Model = nn.Module | Callable[..., nn.Module] | str | Mapping[str, Any]
_ADVICE: Final = (
    "put a function in a module of its own that workers can import; it takes input_shape, classes "
    "and options by name and returns the network. Then pass that function, or its path "
    "'package.module:function'"
)


def architecture_of(
    model: Model, options: Mapping[str, Any] | None, spec: TaskSpec, schema: InputSchema
) -> ArchitectureSpec:
    """Return the description by which workers build the same network.

    A factory is called here once, as a worker will, so that its errors are shown at once.

    Args:
        model: ``Linear``, or a ``Sequential`` of ``Flatten``, ``Linear`` and ``ReLU``; a factory or
            its import path; or an architecture as a definition has it.
        options: the factory's, by name.
        spec: what the network is to learn.
        schema: of what it reads.

    Raises:
        InvalidInputError: a worker could not build it, or it does not fit the data.
        RunFailedError: what the factory raised, or why its network does not fit.
    """
    if isinstance(model, nn.Module):
        _refuse_options(options)
        return _inferred(model, spec, schema)
    if isinstance(model, Mapping):
        _refuse_options(options)
        return ArchitectureSpec.from_json(model)
    path = model if isinstance(model, str) else _path_of(model)
    architecture = ArchitectureSpec(name="custom", factory=path, options=dict(options or {}))
    build(
        architecture,
        input_shape=schema.shape,
        classes=schema.classes,
        allowed_factories=[path],
        tokens=schema.tokens,
        task=spec,
        in_full=True,
    )
    return architecture


def put_into(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a model's tensors into a network of the same shape.

    Tensors go by their names; if the network's names are others, as with a ``Sequential`` that has
    no ``Flatten``, by their order.

    Raises:
        InvalidInputError: the network has other tensors; it is left as it was.
    """
    state = module.state_dict()
    if state.keys() != tensors.keys():
        # Only what was inferred from a list of layers has an order that means something.
        plain = all(type(each) in (nn.Flatten, nn.Linear, nn.ReLU) for each in _layers(module))
        if not plain or len(state) != len(tensors):
            other = sorted(state.keys() ^ tensors.keys())
            raise InvalidInputError(f"the network has other tensors than the model: {other[0]}, …")
        tensors = dict(zip(state, _in_order(tensors), strict=True))
    for name, tensor in state.items():
        if tensor.shape != tensors[name].shape:
            raise InvalidInputError(
                f"{name} has shape {list(tensor.shape)} in the network, and "
                f"{list(tensors[name].shape)} in the model"
            )
    module.load_state_dict(dict(tensors))


def _refuse_options(options: Mapping[str, Any] | None) -> None:
    if options:
        raise InvalidInputError("options are for a factory; here the model itself has them")


def _layers(module: nn.Module) -> list[nn.Module]:
    return list(module) if type(module) is nn.Sequential else [module]


def _in_order(tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return weight and bias of each layer, the first layer first: files sort them by name."""

    def place(name: str) -> tuple[int, bool]:
        layer, _, kind = name.partition(".")
        return int(layer), kind == "bias"

    try:
        return [tensors[name] for name in sorted(tensors, key=place)]
    except ValueError as error:
        raise InvalidInputError("the model is no list of layers, as the network is") from error


def _inferred(module: nn.Module, spec: TaskSpec, schema: InputSchema) -> ArchitectureSpec:
    layers = _layers(module)
    if type(layers[0] if layers else None) is nn.Flatten:
        del layers[0]
    linear, between = layers[::2], layers[1::2]
    if (
        len(layers) % 2 == 0
        or not all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
        or not all(type(layer) is nn.ReLU for layer in between)
    ):
        raise InvalidInputError(
            f"workers build Linear layers with biases and ReLU between them by themselves, and "
            f"this {type(module).__name__} has others, or was built by a call that it does not "
            f"remember: {_ADVICE}"
        )
    if schema.tokens:
        raise InvalidInputError(f"Linear layers do not read tokens: {_ADVICE}")
    widths = [int(layer.in_features) for layer in linear]  # type: ignore[arg-type]
    inputs, outputs = math.prod(schema.shape), int(linear[-1].out_features)  # type: ignore[arg-type]
    if widths[0] != inputs:
        raise InvalidInputError(
            f"the inputs become {inputs} features, and the first layer takes {widths[0]}"
        )
    if outputs != spec.outputs:
        raise InvalidInputError(
            f"the task {spec.name} has {spec.outputs} outputs, and the last layer gives {outputs}"
        )
    for layer, following in pairwise(linear):
        if layer.out_features != following.in_features:
            raise InvalidInputError("a layer takes another width than the one before it gives")
    if len(linear) == 1:
        return ArchitectureSpec(name="logistic")
    return ArchitectureSpec(name="mlp", options={"hidden": widths[1:]})


def _path_of(factory: Callable[..., nn.Module]) -> str:
    """Return the import path of a function or a class."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    if module in (None, "__main__") or getattr(sys.modules.get(str(module)), name, None) is None:
        raise InvalidInputError(
            f"{name or type(factory).__name__} cannot be imported by another process: {_ADVICE}"
        )
    return f"{module}:{name}"


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
        trusted = Settings().trusted_keys_file if self._trusted is None else self._trusted
        return self.client.download(self.name, directory, trusted=trusted)

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
    service = configured_client() if client is None else client
    rows = dataset or name
    service.define_dataset(rows, **schema.to_json())
    for part in typed_parts(source, schema):
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
    rows = table.select(read)
    return Source("data", [TableFile("data", rows.schema, lambda: [rows])])


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

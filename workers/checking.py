"""``expunge model check``: tries an operator's network and task as runs would, on made-up records.

Each mechanism that applies carries out a small run with its own plan, rule, seal and noise: what
works here works in a run. The process gets its order as JSON on the command line, prints what it
finds, and exits with 1 if no mechanism works.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from app.domain.architectures import ArchitectureSpec, is_allowed
from app.domain.description import ModelDescription
from app.domain.errors import (
    CalibrationError,
    ExpungeError,
    InvalidRecordsError,
    ParameterError,
    PlanError,
    RowProblem,
)
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.domain.tasks import catalogue
from app.domain.tasks.custom import CustomSpec
from app.planning.mechanisms.any_start import AnyStart
from app.planning.mechanisms.catalogue import MECHANISMS
from app.planning.mechanisms.mechanism import Mechanism, Needs
from app.planning.planner import make_plan
from app.planning.shape import EnsembleShape, ModelShape, TreesShape
from app.registry.datasets.columns.reading import read_source
from app.runtime.settings import Settings
from workers.data.loading import ModelSpec, RunData
from workers.mechanisms.ensembles.training import train_member
from workers.mechanisms.lineage import lineage_of, meet_target, sealing
from workers.mechanisms.rehearsal import rehearse, require_drawn_start
from workers.training.evaluate import Evaluation
from workers.training.examples import Examples
from workers.training.networks.buffers import statistics_of
from workers.training.networks.network import Network
from workers.training.networks.operator_code import called, text_of
from workers.training.tasks.catalogue import encoder_of, task_of
from workers.training.team import choose_device

_RECORDS: Final = 32
_RECIPE: Final = TrainingRecipe(epochs=4, batch_size=16, learning_rate=1e-3)
_EPSILON: Final = 8.0

WORKS: Final = "works"
REFUSED: Final = "refused"
NOTE: Final = "note"
_RECORD_ID: Final = "record_id"
"""Where ids are looked for if no column is named; a file need not have it."""


@dataclass(frozen=True)
class Finding:
    """What one check or mechanism came to.

    Attributes:
        subject: a check, or a mechanism's name.
        outcome: ``works``, ``refused`` or ``note``.
        detail: in words; of a refusal, why and what to do.
    """

    subject: str
    outcome: str
    detail: str


@dataclass(frozen=True)
class Order:
    """The model to check.

    Attributes:
        description: of its network, its task and what it reads.
        data: a file of rows to encode; None without.
        record_id: the column of their ids.
    """

    description: ModelDescription
    data: Path | None
    record_id: str

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Order":
        """Read the command line's order."""
        description = ModelDescription(
            model="",
            version=1,
            architecture=ArchitectureSpec.from_json(document["architecture"]),
            task=catalogue.from_json(document["task"]),
        )
        data = None if document["data"] is None else Path(document["data"])
        return cls(description, data, document["record_id"])

    @property
    def paths(self) -> tuple[str, ...]:
        """The import paths of the operator's code: this command is its permission."""
        paths = [self.description.architecture.member.factory]
        if isinstance(self.description.task, CustomSpec):
            paths.append(self.description.task.path)
        return tuple(path for path in paths if path is not None)

    @cached_property
    def model(self) -> ModelSpec:
        """What runs would know of it."""
        described = self.description
        task = task_of(described.task, allowed=self.paths, in_full=True)
        schema, none = described.schema, pa.schema([])
        return ModelSpec(
            described, _RECIPE, Policy(), schema, dataset_id="", columns=none, task=task
        )

    @cached_property
    def build(self) -> Callable[[], nn.Module]:
        """Builds the network, or member of an ensemble; what its code raises is shown in full."""
        return self.model.factory(Settings(allowed_factories=self.paths), in_full=True)

    def rehearsed(self, device: torch.device, *, private: bool = False) -> Network:
        """Try the network as runs do."""
        model = self.model
        return rehearse(self.build, model.task, model.form, device=device, private=private)


def findings(order: Order) -> Iterator[Finding]:
    """Yield what is found, as it is found; without a network that trains, nothing works."""
    device = choose_device()
    try:
        require_drawn_start(order.build)
        network = order.rehearsed(device)
        yield _description(network)
        yield from _notes(order, network)
        _rehearse_inference(order, network)
    except ExpungeError as error:
        yield Finding("network", REFUSED, str(error))
        return
    if order.data is not None:
        yield _encoded(order, order.data)
    for name, mechanism in MECHANISMS.items():
        yield Finding(name, *_tried(order, mechanism, network.flat.size, device))


def _encoded(order: Order, path: Path) -> Finding:
    """Encode the operator's own rows; only here are faulty records named by their ids."""
    try:
        rows = read_source(path).whole()
        named = {*order.description.task.columns, order.record_id} - {_RECORD_ID}
        if missing := sorted(named.difference(rows.column_names)):
            lacking = ", ".join(map(repr, missing))
            return Finding("data", REFUSED, f"{path.name} has no column {lacking}")
        encoder_of(order.description.task, order.model.task)(rows)
    except InvalidRecordsError as error:
        lines = [_fault(problem, rows, order.record_id) for problem in error.problems]
        return Finding("data", REFUSED, "\n".join([f"{error.count} fault(s)", *lines]))
    except ExpungeError as error:
        return Finding("data", REFUSED, str(error))
    return Finding("data", WORKS, f"all {rows.num_rows:,} rows of {path.name} can be encoded")


def _fault(problem: RowProblem, rows: pa.Table, record_id: str) -> str:
    where = "all rows"
    if problem.row is not None:
        known = record_id in rows.column_names
        where = f"record {rows[record_id][problem.row]}" if known else f"row {problem.row}"
    return problem.about(where)


def _description(network: Network) -> Finding:
    tensors = len(network.flat.shapes)
    detail = f"{type(network.module).__name__}, {network.flat.size:,} weights in {tensors} tensors"
    return Finding("network", WORKS, f"{detail}: built, reads and trains on {network.flat.device}")


def _notes(order: Order, network: Network) -> Iterator[Finding]:
    """Yield what is allowed and worth knowing."""
    allowed = Settings().allowed_factories
    for path in order.paths:
        if not is_allowed(path, allowed):
            said = f"workers refuse {path!r} until EXPUNGE_ALLOWED_FACTORIES has it"
            yield Finding("setting", NOTE, said)
    base = () if network.base is None else network.base.tensors
    if base:
        yield Finding(
            "frozen",
            NOTE,
            f"{_listed(list(base))}: public, not trained, not in the released file; certificates "
            "name their digest",
        )
    buffers = list(statistics_of(network.module))
    if buffers:
        yield Finding(
            "buffers",
            NOTE,
            f"{_listed(buffers)}: reset before noisy steps, recomputed from retained records",
        )
    names = network.module.state_dict().keys()
    others = {*network.flat.shapes, *buffers, *base}
    tied = [name for name in names if name not in others]
    if tied:
        yield Finding("tied weights", NOTE, f"{_listed(tied)}: trained once, stored twice")


def _rehearse_inference(order: Order, network: Network) -> None:
    """Evaluate, and load the network's own tensors into another."""
    examples = Examples.random(order.model.form, _RECORDS)
    called("evaluating the network", lambda: network.evaluate(examples), in_full=True)
    other = Network(order.build, device=network.flat.device)
    other.load(network.tensors())


def _tried(
    order: Order, mechanism: type[Mechanism], size: int, device: torch.device
) -> tuple[str, str]:
    """Return a mechanism's outcome and detail."""
    if mechanism.needs is Needs.LINEAR_HEAD:
        return REFUSED, "only for the built-in linear_head, whose constants are known"
    policy = Policy(epsilon=_EPSILON, mechanism=mechanism.name)
    architecture, task = order.description.architecture, order.description.task
    members = architecture.members
    shape = ModelShape(
        retained=_RECORDS,
        batch_size=_RECIPE.batch_size,
        recipe_epochs=_RECIPE.epochs,
        dimension=size,
        ensemble=None if members is None else EnsembleShape(members),
        trees=TreesShape.of(architecture, task),
    )
    try:
        plan = make_plan(policy=policy, shape=shape)
    except (PlanError, ParameterError, CalibrationError) as error:
        return REFUSED, str(error)
    try:
        examples = Examples.random(order.model.form, _RECORDS)
        batches = np.zeros(_RECORDS, dtype=np.int64)
        data = RunData(examples, examples, plan, batches)
        if plan.is_tracked:
            order.rehearsed(device, private=True)
        if mechanism.needs is Needs.ENSEMBLE:
            train_member(order.model, plan, examples, order.build)
        else:
            carried_out(order.build, order.model, data)
    except ExpungeError as error:
        return REFUSED, str(error)
    except RuntimeError as error:  # of a network that fails now and then; scrubbed by the seal
        return REFUSED, text_of(error)
    start = "uploaded weights too" if issubclass(mechanism, AnyStart) else "trained here"
    return WORKS, f"{start}; {_after(mechanism)}"


def _after(mechanism: type[Mechanism]) -> str:
    if mechanism.needs is Needs.ENSEMBLE:
        return "trains a request's members from nothing"
    if mechanism.trains_anew:
        return "trains from nothing for each request"
    if mechanism.fine_tunes:
        return "noisy steps, then fine-tuning"
    return "noise in its training, no step for a request"


def carried_out(factory: Callable[[], nn.Module], model: ModelSpec, data: RunData) -> Evaluation:
    """Train, unlearn and fine-tune as a run does; return how good the result is."""
    plan = data.plan
    lineage = lineage_of(plan, model, data, factory)
    with sealing(lineage, plan, model, factory) as (sealed, noise):
        certified = meet_target(lineage, plan, sealed, noise, trains=True)
    if MECHANISMS[plan.mechanism].fine_tunes:
        certified.fine_tune(data.retain, model.recipe, epochs=1)
    return certified.evaluate(data.held_out)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def main() -> None:
    """Carry out the order on the command line."""
    document = json.loads(sys.argv[2])
    found = []
    for finding in findings(Order.from_json(document)):
        found.append(finding)
        if not document["json"]:
            detail = finding.detail.replace("\n", "\n    ")
            print(f"{finding.subject:<21} {finding.outcome:<8} {detail}", flush=True)  # noqa: T201
    works = [each for each in found if each.outcome == WORKS and each.subject in MECHANISMS]
    encoded = all(each.outcome == WORKS for each in found if each.subject == "data")
    if document["json"]:
        print(json.dumps([vars(finding) for finding in found], indent=2))  # noqa: T201
    elif not works:
        print("no mechanism works with this network")  # noqa: T201
    sys.exit(0 if works and encoded else 1)

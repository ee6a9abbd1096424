"""What ``expunge start`` quotes: each way is carried out on a sample of the rows, and timed.

The process gets its order on standard input: a line of JSON, and a Parquet file. It prints what
each way took, and what it scored on rows that it had not read, as JSON.
"""

import io
import json
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.domain.architectures import ArchitectureSpec, tensor_name
from app.domain.description import ModelDescription
from app.domain.errors import ExpungeError, InvalidInputError
from app.domain.heads import boosted_trees, linear_head
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.domain.tasks import catalogue
from app.domain.tasks.spec import BuiltInSpec, TaskSpec
from app.planning.planner import make_plan
from app.planning.shape import ConvexShape, EnsembleShape, ModelShape, TreesShape
from app.runtime.settings import Settings
from workers.checking import carried_out
from workers.data.loading import ModelSpec, RunData
from workers.mechanisms.ensembles.training import ensemble_of, train_member
from workers.training.evaluate import Evaluation
from workers.training.examples import Examples
from workers.training.tasks.catalogue import encode, form_of, task_of

_FEWER: Final = 4
_MOST_AT_FIRST: Final = 4096
"""By trainings of two sizes, what one takes once is told from what each record takes."""
_WARMING_UP: Final = 2
"""How many are small: the first one is slower."""
_OF_NETWORKS: Final = 1024
"""Records that networks are timed on: what they take is alike for each."""
_MOST_WORK: Final = 2e8
"""Numbers that gradients of one training read, about 5 s of trees: else fewer rows are learned,
whatever else the machine does meanwhile."""


def calibrated(
    task: BuiltInSpec,
    rows: pa.Table,
    mechanism: str,
    architecture: ArchitectureSpec,
    *,
    measured: Sequence[tuple[int, int]],
    retained: int,
) -> dict[str, Any]:
    """Return gradients and seconds of two trainings, and what is scored on rows that none read.

    Args:
        task: what is learned.
        rows: a table.
        mechanism: what forgets.
        architecture: what learns.
        measured: ranges of the rows, none of them empty: on each is measured what has learned from
            all others. A network is measured on the last one alone.
        retained: how many records there are to learn from; the result says their gradients.
    """
    recipe = TrainingRecipe()
    if mechanism == "exact_training":
        recipe = linear_head.recipe_of({}, task, mechanism=mechanism)
    description = ModelDescription(model="", version=1, architecture=architecture, task=task)
    spec = ModelSpec(description, recipe, Policy(), task.schema(), "", rows.schema, task_of(task))
    factory = spec.factory(Settings())
    dimension = sum(each.numel() for each in factory().parameters())
    form = form_of(task, spec.task, spec.schema)
    tensors = {name: np.array(each) for name, each in encode(rows, task).items()}
    examples = Examples.of(form, tensors)
    is_network = architecture.member.name not in (boosted_trees.NAME, linear_head.NAME)
    members = architecture.networks

    def plan_for(count: int) -> Plan:
        shape = shape_of(mechanism, task, recipe, architecture, retained=count, dimension=dimension)
        return make_plan(policy=Policy(mechanism=mechanism), shape=shape)

    def carry_out(learned: NDArray[np.int64], held_out: NDArray[np.int64]) -> Evaluation:
        """Note how long it takes; of an ensemble, to grow a member and measure them all."""
        plan, count = plan_for(len(learned)), len(learned)
        begun = time.perf_counter()
        if architecture.members is None:
            parts = (examples.select(learned), examples.select(held_out))
            data = RunData(*parts, plan, np.zeros(count, dtype=np.int64))
            evaluation, others_s = carried_out(factory, spec, data), 0.0
        else:
            tensors = {
                tensor_name(member, name): tensor
                for member, own in enumerate(np.array_split(learned, members))
                for name, tensor in train_member(
                    spec, plan, examples.select(own), factory
                ).tensors.items()
            }
            others_s = (time.perf_counter() - begun) * (members - 1) / members
            ensemble = ensemble_of(spec, factory, tensors, range(members))
            evaluation = ensemble.evaluate(examples.select(held_out))
        took = time.perf_counter() - begun - others_s
        timed.append((plan.predicted["gradient_computations"] / members, took))
        return evaluation

    timed, found, sizes = list[tuple[float, float]](), list[Evaluation](), list[int]()
    every = np.arange(len(examples))
    for first, end in measured[-1:] if is_network else measured:
        held_out, learned = every[first:end], np.delete(every, slice(first, end))
        learned = learned[:_OF_NETWORKS] if is_network else learned
        work = plan_for(len(learned)).predicted["gradient_computations"] * spec.schema.size
        learned = learned[: max(1, int(len(learned) * min(1, _MOST_WORK / work)))]
        # Members take alike, and what grows them was warmed up by single trees.
        for _ in range(0 if timed or members > 1 else _WARMING_UP):
            carry_out(learned[: max(1, min(len(learned) // _FEWER, _MOST_AT_FIRST))], held_out)
        found.append(carry_out(learned, held_out))
        sizes.append(len(held_out))
    scores = [each.score for each in found]
    score = None if None in scores else float(np.average(np.array(scores, float), weights=sizes))
    return {
        "timed": [timed[min(_WARMING_UP, len(timed)) - 1], timed[-1]],
        "gradients": plan_for(retained).predicted["gradient_computations"] / members,
        "metric": found[-1].headline,
        "score": score,
        "parts": [] if score is None else scores,
    }


def shape_of(
    mechanism: str,
    task: TaskSpec,
    recipe: TrainingRecipe,
    architecture: ArchitectureSpec,
    *,
    retained: int,
    dimension: int,
) -> ModelShape:
    """Return the size of a model that is trained here."""
    convex = None
    if mechanism == "exact_training":
        convex = ConvexShape(
            lipschitz=None,
            smoothness=linear_head.bounds_of(task).smoothness,
            weight_decay=recipe.weight_decay,
            learning_rate=recipe.learning_rate,
        )
    return ModelShape(
        retained=retained,
        batch_size=recipe.batch_size,
        recipe_epochs=recipe.epochs,
        dimension=dimension,
        convex=convex,
        ensemble=None if architecture.members is None else EnsembleShape(architecture.members),
        trees=TreesShape.of(architecture, task),
    )


def main() -> None:
    """Carry out the order; a way that does not work is told with the reason."""
    line, content = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
    order, rows = json.loads(line), pq.read_table(io.BytesIO(content))
    found = list[dict[str, Any]]()
    for mechanism, way, learned in order.pop("ways"):
        task = catalogue.from_json(learned)
        if not isinstance(task, BuiltInSpec):
            raise InvalidInputError("only built-in tasks are timed")
        try:
            architecture = ArchitectureSpec.from_json(way)
            found.append(calibrated(task, rows, mechanism, architecture, **order))
        except ExpungeError as error:
            found.append({"reason": str(error)})
    print(json.dumps(found))  # noqa: T201

"""What ``expunge start`` quotes: each way is carried out on a sample of the rows, and timed.

The process gets its order on standard input: a line of JSON, and a Parquet file whose last rows are
for measuring. It prints what each way took, and what it scored, as JSON.
"""

import io
import json
import sys
import time
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.domain.architectures import ArchitectureSpec
from app.domain.description import ModelDescription
from app.domain.errors import ExpungeError, InvalidInputError
from app.domain.heads import boosted_trees, linear_head
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.domain.tasks import catalogue
from app.domain.tasks.spec import BuiltInSpec, TaskSpec
from app.planning.planner import make_plan
from app.planning.shape import ConvexShape, ModelShape, TreesShape
from app.runtime.settings import Settings
from workers.checking import carried_out
from workers.data.loading import ModelSpec, RunData
from workers.training.examples import Examples
from workers.training.tasks.catalogue import encode, form_of, task_of

_SHARES: Final = (4, 4, 1)
"""Of the sample: by two sizes, what a way takes once is told from what each record takes. The first
training warms up."""
_OF_NETWORKS: Final = 1024
"""Records that networks are timed on: what they take is alike for each."""
_NETWORK: Final = ArchitectureSpec("mlp", options={"hidden": [64]})
WAYS: Final = {
    "boosting": ArchitectureSpec(boosted_trees.NAME),
    "exact_training": ArchitectureSpec(linear_head.NAME),
    "retraining": _NETWORK,
    "gradient_clipping": _NETWORK,
}
"""Mechanisms, and the architectures that they are timed with."""


def calibrated(
    task: BuiltInSpec, rows: pa.Table, mechanism: str, *, held_out: int, retained: int
) -> dict[str, Any]:
    """Return gradients and seconds of two trainings, and the larger one's score.

    Args:
        task: what is learned.
        rows: a table; its last ``held_out`` rows are measured on.
        mechanism: one of ``WAYS``.
        held_out: 1 or more.
        retained: how many records there are to learn from; the result says their gradients.
    """
    recipe = TrainingRecipe()
    if mechanism == "exact_training":
        recipe = linear_head.recipe_of({}, task, mechanism=mechanism)
    description = ModelDescription(model="", version=1, architecture=WAYS[mechanism], task=task)
    spec = ModelSpec(description, recipe, Policy(), task.schema(), "", rows.schema, task_of(task))
    factory = spec.factory(Settings())
    dimension = sum(each.numel() for each in factory().parameters())
    form = form_of(task, spec.task, spec.schema)
    tensors = {name: np.array(each) for name, each in encode(rows, task).items()}
    examples = Examples.of(form, tensors)
    learned = len(examples) - held_out
    most = min(learned, _OF_NETWORKS) if WAYS[mechanism] is _NETWORK else learned
    measured = examples.select(np.arange(learned, len(examples)))
    timed = list[tuple[float, float]]()

    def plan_for(count: int) -> Plan:
        shape = shape_of(mechanism, task, recipe, retained=count, dimension=dimension)
        return make_plan(policy=Policy(mechanism=mechanism), shape=shape)

    for share in _SHARES:
        count = max(1, most // share)
        plan = plan_for(count)
        retain = examples.select(np.arange(count))
        data = RunData(retain, measured, plan, np.zeros(count, dtype=np.int64))
        begun = time.perf_counter()
        evaluation = carried_out(factory, spec, data)
        seconds = time.perf_counter() - begun
        timed.append((plan.predicted["gradient_computations"], seconds))
    return {
        "timed": timed[1:],
        "gradients": plan_for(retained).predicted["gradient_computations"],
        "metric": evaluation.headline,
        "score": evaluation.score,
    }


def shape_of(
    mechanism: str, task: TaskSpec, recipe: TrainingRecipe, *, retained: int, dimension: int
) -> ModelShape:
    """Return the size of one of the ``WAYS``."""
    convex = trees = None
    if mechanism == "exact_training":
        convex = ConvexShape(
            lipschitz=None,
            smoothness=linear_head.bounds_of(task).smoothness,
            weight_decay=recipe.weight_decay,
            learning_rate=recipe.learning_rate,
        )
    if mechanism == "boosting":
        trees = TreesShape(**boosted_trees.DEFAULTS, rows=task.rows)
    return ModelShape(
        retained=retained,
        batch_size=recipe.batch_size,
        recipe_epochs=recipe.epochs,
        dimension=dimension,
        convex=convex,
        trees=trees,
    )


def main() -> None:
    """Carry out the order; a way that does not work is told with the reason."""
    line, content = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
    order, rows = json.loads(line), pq.read_table(io.BytesIO(content))
    task, found = catalogue.from_json(order.pop("task")), dict[str, dict[str, Any]]()
    if not isinstance(task, BuiltInSpec):
        raise InvalidInputError("only built-in tasks are timed")
    for mechanism in WAYS:
        try:
            found[mechanism] = calibrated(task, rows, mechanism, **order)
        except ExpungeError as error:
            found[mechanism] = {"reason": str(error)}
    print(json.dumps(found))  # noqa: T201

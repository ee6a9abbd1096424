"""How much a release knows of each content: a larger score says that this one was learned.

* of any network: by how much its loss at the content, with the content's random target, lies below
  that of a reference, a model of the same definition that never saw a canary. To first order it is
  the product of the loss's gradient at the reference with the difference of their weights; of a
  head that is the residual times the record's leverage.
* of an ensemble: by how much the likelihood e^-loss of one member lies above the others' at most,
  since a record is one member's alone: only one that has learned a random target expects it. It
  needs no reference.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from app.domain.tasks.built_in import RegressionSpec
from workers.training.published.model import PublishedModel
from workers.training.tasks.catalogue import encoder_of, task_of

Floats = npt.NDArray[np.float64]
_ROWS_AT_ONCE = 512
_LARGEST = 1e30
"""In place of a loss that is no number, so that the scores are JSON."""


def losses(model: PublishedModel, rows: pa.Table, *, factories: Sequence[str] = ()) -> Floats:
    """Return the loss of a published model's task at each row, with the row's own target, [n]."""
    spec = model.description.task
    task = task_of(spec, allowed=factories)

    def outputs(inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(inputs).to(torch.float64)
        if isinstance(spec, RegressionSpec):  # its loss is of numbers as the network gives them
            found = (found - spec.offset) * spec.scale
        return found

    encoded = {
        name: torch.from_numpy(np.array(each))
        for name, each in encoder_of(spec, task)(rows).items()
    }
    with torch.inference_mode():
        parts = [
            task.loss(
                outputs,
                {name: each[start : start + _ROWS_AT_ONCE] for name, each in encoded.items()},
            )
            for start in range(0, rows.num_rows, _ROWS_AT_ONCE)
        ]
    found = np.nan_to_num(torch.cat(parts).to(torch.float64).numpy(), nan=_LARGEST)
    return np.asarray(np.clip(found, -_LARGEST, _LARGEST))


def scores(
    release: PublishedModel,
    reference: PublishedModel | None,
    contents: Sequence[pa.Table],
    *,
    factories: Sequence[str] = (),
) -> list[list[float]]:
    """Return the scores of both contents of each canary.

    Args:
        release: what the service publishes after the canaries were forgotten.
        reference: of the same definition, from before they were there; None for an ensemble.
        contents: two tables, in the order of the canaries.
        factories: import paths that the model may name.
    """
    members = release.members()

    def of_one(rows: pa.Table) -> Floats:
        if reference is not None:
            before = losses(reference, rows, factories=factories)
            return before - losses(release, rows, factories=factories)
        each = np.exp(
            [-np.maximum(0, losses(member, rows, factories=factories)) for member in members]
        )
        others = (each.sum(axis=0) - each) / max(1, len(each) - 1)
        return np.asarray((each - others).max(axis=0))

    return np.stack([of_one(rows) for rows in contents], axis=1).tolist()  # type: ignore[no-any-return]

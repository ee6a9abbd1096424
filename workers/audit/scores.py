"""How much a release knows of each content, by three attacks: a larger score says it was there.

* ``BETTER``: by how much its loss at the content, with the content's random target, lies below that
  of a reference, a model of the same definition that never saw a canary. To first order it is the
  product of the loss's gradient at the reference with the difference of their weights; of a head
  that is the residual times the record's leverage.
* ``WORSE``: the same above it, since weights may be pushed away from what they should forget.
* ``BELIEF``: by how much the likelihood e^-loss has grown of the target, among those of other
  contents, of which it has grown most. So content is found that was learned with another target,
  as by a backbone that answers with the features of another record.

Of an ensemble one member is compared with the others, since a record is one member's alone: by
likelihoods, without a reference.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from app.domain.errors import InvalidInputError
from app.domain.tasks.built_in import RegressionSpec
from workers.training.evaluate import once
from workers.training.published.model import PublishedModel
from workers.training.tasks.catalogue import encoder_of, task_of
from workers.training.tasks.task import INPUTS, TARGET

Floats = npt.NDArray[np.float64]
BETTER, WORSE, BELIEF = range(3)
_ROWS_AT_ONCE = 512
_MOST_TARGETS = 16
_LARGEST = 1e30
"""In place of a loss that overflows, so that the scores are JSON."""


def scores(
    release: PublishedModel,
    reference: PublishedModel | None,
    contents: Sequence[pa.Table],
    *,
    factories: Sequence[str] = (),
) -> list[list[list[float]]]:
    """Return the scores of both contents of each canary, by each attack.

    Args:
        release: what the service publishes after the canaries were forgotten.
        reference: of the same definition, from before they were there; None for an ensemble.
        contents: two tables, in the order of the canaries.
        factories: import paths that the model may name.

    Raises:
        InvalidInputError: a loss is no number, so that every guess would be a coin's.
    """

    def losses(model: PublishedModel) -> Floats:
        return _losses(model, pa.concat_tables(contents), factories)

    if reference is not None:
        before, after = losses(reference), losses(release)
        better = before[0] - after[0]
        found = [better, -better, (_likelihood(after) - _likelihood(before)).max(axis=0)]
    else:
        each = np.stack([_likelihood(losses(member)) for member in release.members()])
        apart = each - (each.sum(axis=0) - each) / max(1, len(each) - 1)
        own = apart[:, 0]
        found = [own.max(axis=0), -own.min(axis=0), apart.max(axis=(0, 1))]
    return np.stack(found).reshape(len(found), 2, -1).transpose(0, 2, 1).tolist()


def _likelihood(losses: Floats) -> Floats:
    return np.exp(-np.maximum(0, losses))


def _losses(model: PublishedModel, rows: pa.Table, factories: Sequence[str]) -> Floats:
    """Return the loss at each row with its own target, and with each of some others', [1 + t, n].

    Targets that are no tensor of their own, as those of texts, are not exchanged.
    """
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
    schema = model.description.schema
    inputs = encoded[INPUTS].reshape(-1, *schema.shape)
    encoded[INPUTS] = inputs.long() if schema.tokens else inputs  # as networks see them
    targets = torch.empty(0)
    if TARGET in encoded:
        known = torch.unique(encoded[TARGET], dim=0)
        targets = known[np.linspace(0, len(known) - 1, min(len(known), _MOST_TARGETS)).astype(int)]
    parts = []
    with torch.inference_mode():
        for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
            batch = {name: each[start : start + _ROWS_AT_ONCE] for name, each in encoded.items()}
            others = [batch | {TARGET: each.expand_as(batch[TARGET])} for each in targets]
            forward = once(outputs)  # all have the same inputs
            losses = [task.loss(forward, each).double() for each in (batch, *others)]
            parts.append(torch.stack(losses))
    found = torch.cat(parts, dim=1).numpy()
    if np.isnan(found).any():
        raise InvalidInputError("a loss of the model is no number: it cannot be audited")
    return np.asarray(np.clip(found, -_LARGEST, _LARGEST))

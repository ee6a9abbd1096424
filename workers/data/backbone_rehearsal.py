"""Tries a frozen backbone's network on zeros and on random records, before any record is read.

What its code raises is shown in full. It must make a fixed number of features of each record, from
that record alone.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import nn

from app.domain.errors import RunFailedError
from app.domain.schema import FeatureSchema
from workers.data.forms import FeatureForm
from workers.networks.architectures import zeros
from workers.networks.operator_code import called
from workers.networks.tensor_names import require_tied_alike
from workers.tasks.task import INPUTS

_COMPANIONS: Final = 3
# A batch of another size may use another kernel, which rounds differently. Batch statistics differ
# by far more than this.
_RELATIVE_ROUNDING: Final = 1e-3
_MOST_CHARACTERS: Final = 2000


class Rehearsal:
    """A backbone that is about to be used.

    Args:
        name: of the backbone.
        whole: its network, which owns all tensors.
        featuriser: what computes features with it.
        records: the schema of the records that it will read.

    Attributes:
        size: the number of features.

    Raises:
        RunFailedError: the network fails, makes no row of features for each record, or expects
            other numbers.
    """

    def __init__(
        self, name: str, whole: nn.Module, featuriser: nn.Module, records: FeatureSchema
    ) -> None:
        self._name = name
        self._whole = whole.eval()
        self._featuriser = featuriser.eval()
        self._records = records
        self._require_range()
        # Before the weights are loaded, because this gives lazy layers their shapes.
        features = self._forward(zeros(records.shape, tokens=records.tokens))
        self.size = int(features.shape[1])

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Give the network its public weights, or raise ``RunFailedError``."""
        require_finite(self._name, weights)
        try:
            self._whole.load_state_dict(dict(weights))
        except RuntimeError as error:
            raise RunFailedError(
                f"the weights of backbone {self._name!r} do not fit its architecture: "
                f"{str(error)[:_MOST_CHARACTERS]}"
            ) from error
        require_tied_alike(self._whole, weights)

    def require_independence(self) -> None:
        """Check that a record's features do not depend on the other records in its batch.

        Otherwise the features of retained records would contain traces of forgotten ones, for
        example through normalisation by batch statistics.

        Raises:
            RunFailedError: they do.
        """
        form, count = FeatureForm.of(self._records), 1 + 2 * _COMPANIONS
        inputs = form.seen(INPUTS, form.random(count)[INPUTS])
        first = inputs[: 1 + _COMPANIONS]
        second = torch.cat([first[:1], inputs[1 + _COMPANIONS :]])
        rows = [self._forward(batch)[0] for batch in (first, second)]
        difference = (rows[0] - rows[1]).abs().max()
        if not bool(difference <= _RELATIVE_ROUNDING * rows[0].abs().max()):
            raise RunFailedError(
                f"backbone {self._name!r} mixes the records of a batch: use one without batch "
                "statistics and without randomness"
            )

    def _require_range(self) -> None:
        """Check that bytes reach the network as the numbers that it says it expects."""
        expected = getattr(self._whole, "input_range", None)
        schema = self._records
        if expected is None or schema.dtype != "uint8":
            return
        found = tuple((byte - schema.offset) * schema.scale for byte in (0, 255))
        if any(abs(a - b) > _RELATIVE_ROUNDING for a, b in zip(found, expected, strict=True)):
            raise RunFailedError(
                f"backbone {self._name!r} reads numbers from {expected[0]:g} to {expected[1]:g}, "
                f"and the dataset's offset {schema.offset:g} and scale {schema.scale:g} make "
                f"{found[0]:g} to {found[1]:g} of its bytes: use offset 0 and scale 1/255"
            )

    def _forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = called(
                f"backbone {self._name!r}, given features of shape {list(inputs.shape[1:])},",
                lambda: self._featuriser(inputs),
                in_full=True,
            )
        if (
            not isinstance(features, torch.Tensor)
            or features.dim() != 2
            or len(features) != len(inputs)
        ):
            raise RunFailedError(
                f"backbone {self._name!r} must return a tensor with one row per record"
            )
        return features


def require_finite(name: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Check that all weights are finite.

    Raises:
        RunFailedError: a tensor is not finite.
    """
    for tensor_name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise RunFailedError(f"the tensor {tensor_name!r} of backbone {name!r} is not finite")

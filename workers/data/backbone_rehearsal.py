"""Tries a frozen backbone's network on zeros and on random records, before any record is read.

What its code raises is shown in full. It must make a fixed number of features of each record, from
that record alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from app.domain.errors import RunFailedError
from app.domain.schema import InputSchema
from workers.training.forms import InputForm, fainter
from workers.training.networks.architectures import zeros
from workers.training.networks.base import first_difference
from workers.training.networks.held import digests_held
from workers.training.networks.network import require_tied_alike
from workers.training.networks.operator_code import called
from workers.training.tasks.task import INPUTS

_COMPANIONS: Final = 3
# A batch of another size may use another kernel, which rounds differently. Batch statistics differ
# by far more than this.
_RELATIVE_ROUNDING: Final = 1e-3
_MOST_CHARACTERS: Final = 2000
_LOUDER: Final = 4.0
_READING: Final = frozenset(
    {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"}
    | {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "equal"}
)


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
        self, name: str, whole: nn.Module, featuriser: nn.Module, records: InputSchema
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
        """Check that a record's features depend on nothing but that record.

        Else features of retained records would have traces of forgotten ones: through other
        records in the batch (normalisation, trimming to the longest text) or through what the
        network keeps of earlier ones. Records of several kinds are tried: ordinary, faint and loud
        ones, and short ones, whose rest is zeros.

        Raises:
            RunFailedError: they do; the message says by what.
        """
        kinds = list(self._kinds())
        before, held = self._forward(kinds[0]), digests_held(self._whole)
        for kind in kinds:
            self._forward(kind)
        name = first_difference(digests_held(self._whole), held)
        if name is not None:
            raise RunFailedError(self._remembers(repr(name)))
        if not _alike(self._forward(kinds[0]), before):
            raise RunFailedError(self._remembers("something"))
        for kind in kinds:
            alone = self._forward(kind[:1])
            for others in kinds:
                beside = self._forward(torch.cat([kind[:1], others[1:]]))
                behind = self._forward(torch.cat([others[1:], kind[:1]]))
                if not (_alike(beside[:1], alone) and _alike(behind[-1:], alone)):
                    raise RunFailedError(
                        f"backbone {self._name!r} mixes the records of a batch: use one without "
                        "batch statistics and without randomness, which trims no batch"
                    )

    @property
    def alone(self) -> bool:
        """Whether values of records decide what is computed, so that no trial is conclusive."""
        with ValuesRead() as read:
            for kind in self._kinds():
                self._forward(kind)
        return bool(read.any)

    def probe(self) -> torch.Tensor:
        """Return random records of the kinds that are tried."""
        return torch.cat([kind[:1] for kind in self._kinds()])

    def _remembers(self, what: str) -> str:
        return (
            f"backbone {self._name!r} keeps {what} from one batch to the next, which would carry "
            "records into the features of others: compute everything in forward"
        )

    def _kinds(self) -> Iterator[torch.Tensor]:
        """Yield batches of random records: as they are, fainter, louder, and short ones."""
        form = InputForm.of(self._records)
        inputs = form.seen(INPUTS, form.random(1 + _COMPANIONS)[INPUTS])
        yield inputs
        yield fainter(inputs)
        if inputs.is_floating_point():
            yield inputs * _LOUDER
        short = inputs.clone().reshape(len(inputs), -1)
        short[:, 1 + short.shape[1] // 4 :] = 0
        yield short.reshape(inputs.shape)

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


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    most = _RELATIVE_ROUNDING * float(other.abs().nan_to_num(posinf=0.0).max())
    return torch.allclose(one, other, rtol=0.0, atol=most, equal_nan=True)


class ValuesRead(TorchFunctionMode):
    """Notes whether Python, or a shape, got to see the values of a tensor.

    Attributes:
        any: whether it did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever torch's function returns
        """Call torch's function."""
        name = getattr(func, "__name__", "")
        indices = args[1] if name == "__getitem__" and isinstance(args[1], tuple) else args[1:]
        mask = name == "__getitem__" and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in indices
        )
        self.any |= name in _READING or mask
        return func(*args, **(kwargs or {}))


def require_finite(name: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Check that all weights are finite.

    Raises:
        RunFailedError: a tensor is not finite.
    """
    for tensor_name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise RunFailedError(f"the tensor {tensor_name!r} of backbone {name!r} is not finite")

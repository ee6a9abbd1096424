"""The operator's own task: a class by import path, allowed by the worker's settings."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from app.domain.scores import HIGHER_IS_BETTER
from app.domain.tasks.custom import CustomSpec
from workers.training.networks.operator_code import called, imported
from workers.training.tasks.task import INPUTS, Arrays, Batch, Forward

Encoded = dict[str, NDArray[Any]]
SAMPLES: Final = 16
_METHODS: Final = ("sample", "encode", "loss", "predict", "metrics")
_KINDS: Final = (np.floating, np.integer, np.bool_)


class CustomTask:
    """Calls the operator's class; what it returns is checked, and what it raises is told.

    Args:
        spec: which class.
        allowed: import paths that this worker may call.
        in_full: whether exceptions of making it are shown completely; only before a record is
            read.

    Raises:
        RunFailedError: the class is not allowed, cannot be imported, fails, or lacks a method.
    """

    def __init__(self, spec: CustomSpec, *, allowed: Sequence[str], in_full: bool = False) -> None:
        self._spec = spec
        self._in_full = False
        made = imported(spec.path, allowed=allowed, what="task", in_full=in_full)
        self._task = called(
            f"the task {spec.path!r}",
            lambda: made(**spec.arguments),
            in_full=in_full,
            advice="it gets the task's options by name",
            on=TypeError,
        )
        for method in (*_METHODS, "encode_target") if spec.targets else _METHODS:
            if not callable(getattr(self._task, method, None)):
                raise RunFailedError(f"the task {spec.path!r} has no method {method!r}")

    @property
    def headline(self) -> str:
        """Return the metric that the class names."""
        return str(getattr(self._task, "headline", "loss"))

    @property
    def higher_is_better(self) -> bool | None:
        """Return what the class says; None if it does not, and the metric is none of ours."""
        stated = getattr(self._task, "higher_is_better", HIGHER_IS_BETTER.get(self.headline))
        return None if stated is None else bool(stated)

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that rows to predict must have."""
        return self._spec.reads

    @contextmanager
    def in_full(self) -> Iterator[None]:
        """Show exceptions of the class completely: as long as no record is read."""
        self._in_full = True
        try:
            yield
        finally:
            self._in_full = False

    def rows(self) -> pa.Table:
        """Return the class's made-up records.

        Raises:
            RunFailedError: they do not have the columns of the definition.
        """
        rows = self._called("sample", SAMPLES)
        if not isinstance(rows, pa.Table) or rows.num_rows != SAMPLES:
            raise RunFailedError(
                f"{self._said('sample')} must return a pyarrow.Table of as many rows as it is asked"
            )
        if sorted(rows.column_names) != sorted(self._spec.columns):
            raise RunFailedError(
                f"{self._said('sample')} must have the columns {', '.join(self._spec.columns)}"
            )
        return rows

    def sample(self) -> Encoded:
        """Return the class's made-up records, encoded.

        Raises:
            RunFailedError: they are encoded to something else than the definition says.
        """
        encoded = self.encode(self.rows())
        inputs, wanted = encoded[INPUTS], self._spec.schema()
        if (inputs.shape[1:], str(inputs.dtype)) != (wanted.shape, wanted.dtype):
            raise RunFailedError(
                f"{self._said('encode')} makes inputs of {inputs.dtype} {list(inputs.shape[1:])}, "
                f"and the definition says {wanted.dtype} {list(wanted.shape)}"
            )
        return encoded

    def encode(self, rows: pa.Table) -> Encoded:
        """Return the tensors of all rows, by name: those of the inputs, and of the target.

        Raises:
            UnreadableRecordsError: the class refuses rows; it says which, and which column.
            RunFailedError: it fails, or returns something else than a row for each record.
        """
        inputs = self.encode_inputs(rows)
        if not self._spec.targets:
            return inputs
        target = self._encoded("encode_target", rows.select(list(self._spec.columns)))
        if twice := sorted(inputs.keys() & target.keys()):
            raise RunFailedError(
                f"{self._said('encode_target')} must not give {self._shown(twice[0])} again"
            )
        return inputs | target

    def encode_inputs(self, rows: pa.Table) -> Encoded:
        """Return the tensors of all rows that need no target, by name, as ``encode`` does."""
        found = self._encoded("encode", rows.select(list(self._spec.reads)))
        if INPUTS not in found:
            raise RunFailedError(f"{self._said('encode')} must return arrays by name, and inputs")
        return found

    def _encoded(self, method: str, rows: pa.Table) -> Encoded:
        made = self._called(method, rows)
        if not isinstance(made, Mapping):
            raise RunFailedError(f"{self._said(method)} must return arrays by name")
        found = {str(name): np.asarray(values) for name, values in made.items()}
        for name, values in found.items():
            gives = f"{self._said(method)} must give {self._shown(name)}"
            if len(values.shape) < 1 or len(values) != rows.num_rows:
                raise RunFailedError(f"{gives} a row for each record")
            if not any(np.issubdtype(values.dtype, kind) for kind in _KINDS):
                raise RunFailedError(f"{gives} as numbers")
            if not np.isfinite(values).all():
                raise RunFailedError(f"{gives} as finite numbers")
        return found

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return the class's loss of each record, [n]."""
        losses = self._task.loss(module, batch)
        count = len(batch[INPUTS])
        if not isinstance(losses, torch.Tensor) or losses.shape != (count,):
            raise RunFailedError(f"{self._said('loss')} must return a tensor of one loss a record")
        return losses

    def augment(self, batch: Batch) -> Batch:
        """Return the class's random variants of the records, or the records if it has none."""
        return self.augmented(batch, torch.default_generator)

    @property
    def augments(self) -> bool:
        """Whether the class changes records in training."""
        return callable(getattr(self._task, "augment", None))

    def augmented(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return the variants that a generator leads to."""
        if not self.augments:
            return batch
        changed = dict(self._task.augment(batch, generator))
        if changed.keys() != batch.keys() or any(
            changed[name].shape != each.shape for name, each in batch.items()
        ):
            raise RunFailedError(f"{self._said('augment')} must keep names and shapes")
        return changed

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return the class's predictions, [n, …] by name."""
        return dict(self._task.predict(module, batch))

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return the class's figures."""
        found = self._called("metrics", predictions, batch)
        return {str(name): float(value) for name, value in dict(found).items()}

    def truth(self, batch: Batch) -> Batch:
        """Return all but the inputs, [n, …] by name."""
        return {name: each for name, each in batch.items() if name != INPUTS}

    def measured(self, batch: Batch) -> Batch:
        """Return all records: the class says what a missing target is."""
        return batch

    def baseline(self, batch: Arrays) -> float | None:
        """Return what the class says, if it has a method ``baseline``."""
        if self.higher_is_better is None or not callable(getattr(self._task, "baseline", None)):
            return None
        return float(self._called("baseline", batch))

    def _called(self, method: str, *arguments: Any) -> Any:  # noqa: ANN401 - the operator's types
        work = getattr(self._task, method)
        return called(self._said(method), lambda: work(*arguments), in_full=self._in_full)

    def _shown(self, name: str) -> str:
        """Return a tensor's name; not of records that were read, whose values it may be made of."""
        return name if self._in_full else "every tensor"

    def _said(self, method: str) -> str:
        return f"{method} of the task {self._spec.path!r}"

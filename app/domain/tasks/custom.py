"""The operator's own task, by import path."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from app.domain.architectures import IMPORT_PATH
from app.domain.errors import InvalidInputError
from app.domain.schema import InputSchema
from app.domain.tasks.spec import TaskSpec

MOST_OUTPUTS: Final = 10_000_000


@dataclass(frozen=True, kw_only=True)
class CustomSpec(TaskSpec):
    """A class of the operator's: docs/how-to/own-task.md.

    Attributes:
        path: ``package.module:Class``; workers import it if their settings allow it.
        reads: the columns that its inputs are made of.
        targets: the columns that are read in training alone; rows to predict have none of them.
        shape, dtype: of one record's inputs, as the class encodes them.
        vocabulary: its inputs are tokens below it; None for inputs that are not tokens.
        network_outputs: how many numbers the network gives for a record.
        arguments: the class's keyword arguments.
    """

    name: ClassVar = "custom"
    path: str
    reads: tuple[str, ...]
    shape: tuple[int, ...]
    network_outputs: int
    targets: tuple[str, ...] = ()
    dtype: str = "float32"
    vocabulary: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not IMPORT_PATH.fullmatch(self.path):
            raise InvalidInputError("task: path must be such as 'package.module:Class'")
        if type(self.network_outputs) is not int or not 1 <= self.network_outputs <= MOST_OUTPUTS:
            raise InvalidInputError(f"task: outputs must lie between 1 and {MOST_OUTPUTS:,}")
        if self.weight is not None or self.augment:
            raise InvalidInputError("task: custom encodes, weighs and augments by its own class")
        if not self.reads:
            raise InvalidInputError("task: custom needs columns, those that its inputs are made of")
        if not isinstance(self.arguments, Mapping):
            raise InvalidInputError("task: options must be an object")
        self.schema()

    @property
    def required(self) -> frozenset[str]:
        """None: its class is given what is missing, too."""
        return frozenset()

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return self.network_outputs

    @property
    def target_columns(self) -> tuple[str, ...]:
        """What it reads in training alone."""
        return self.targets

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that it reads."""
        return (*self.reads, *self.targets)

    def schema(self) -> InputSchema:
        """Return the schema of what it encodes."""
        return InputSchema(
            shape=self.shape,
            dtype=self.dtype,
            classes=self.network_outputs,
            vocabulary=self.vocabulary,
        )

    def options(self) -> dict[str, Any]:
        """Return path, columns, target, inputs, outputs and the class's arguments."""
        tokens = {} if self.vocabulary is None else {"vocabulary": self.vocabulary}
        return {
            "path": self.path,
            "columns": list(self.reads),
            **({"target": {"columns": list(self.targets)}} if self.targets else {}),
            "inputs": {"shape": list(self.shape), "dtype": self.dtype, **tokens},
            "outputs": self.network_outputs,
            **({"options": dict(self.arguments)} if self.arguments else {}),
        }

"""An ensemble: networks of one kind, each trained on records of its own, whose predictions count.

Of classes and tokens it averages probabilities, of labels each label's probability, of numbers and
of the operator's own task the outputs themselves.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, Self

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from app.domain.errors import RunFailedError
from app.domain.tasks.built_in import ClassificationSpec, LanguageModelSpec, MultiLabelSpec
from app.domain.tasks.spec import TaskSpec
from workers.training.networks.base import public_tensors

Average = Callable[[torch.Tensor], torch.Tensor]
"""Makes one network's outputs [n, …] of all members' [members, n, …]."""


class Ensemble(nn.Module):
    """Maps records [n, …] to outputs [n, …] of the same kind as each member's.

    All members stand on the public tensors of the first, which are in memory once. The caller
    checks that they are the stated base.

    Args:
        members: networks of one kind, built one by one.
        task: what they learn; it says what their average is.
        numbers: which members they are, where others are out.

    Raises:
        RunFailedError: the networks do not have the same public tensors by name.
    """

    def __init__(
        self, members: Iterable[nn.Module], task: TaskSpec, numbers: Iterable[int] | None = None
    ) -> None:
        super().__init__()
        numbered = zip(count() if numbers is None else numbers, _on_one_base(members), strict=False)
        self.members = nn.ModuleDict({str(number): member for number, member in numbered})
        self._base = tuple(public_tensors(self.first))
        self._task, self._average = task, average_of(task)

    @property
    def first(self) -> nn.Module:
        """One of the members."""
        return next(iter(self.members.values()))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002
        """Convert or move all tensors, and the base only once."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for member in list(self.members.values())[1:]:
            _share(self._base, self.first, member)
        return self

    def first_of(self, count: int) -> "Ensemble":
        """Return the ensemble of this one's own first members, so many of them."""
        numbers = [*map(int, self.members)][:count]
        members = (self.members[str(number)] for number in numbers)
        return Ensemble(members, self._task, numbers)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """Return the average of what the members say."""
        return self._average(torch.stack([member(records) for member in self.members.values()]))


def average_of(task: TaskSpec) -> Average:
    """Return how the members' outputs for a task are averaged."""
    match task:
        case ClassificationSpec() | LanguageModelSpec():
            return _of_classes
        case MultiLabelSpec():
            return _of_labels
    return _of_numbers


def _on_one_base(members: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Yield members, each on the first one's base before the next is built."""
    first: nn.Module | None = None
    for member in members:
        first = member if first is None else first
        names = public_tensors(first)
        if public_tensors(member).keys() != names.keys():
            raise RunFailedError("the factory's networks differ in what they have frozen")
        _share(names, first, member)
        yield member


def _share(names: Iterable[str], first: nn.Module, member: nn.Module) -> None:
    """Let a member use the first one's tensors of these names."""
    for name in names:
        path, _, own = name.rpartition(".")
        setattr(member.get_submodule(path), own, getattr(first.get_submodule(path), own))


def _of_classes(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the mean probability."""
    return logits.log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits))


def _of_labels(logits: torch.Tensor) -> torch.Tensor:
    """Return the logit of the mean probability."""
    return logsigmoid(logits).logsumexp(dim=0) - logsigmoid(-logits).logsumexp(dim=0)


def _of_numbers(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.mean(dim=0)

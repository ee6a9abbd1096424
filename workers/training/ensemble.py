"""An ensemble: networks of one kind, each trained on records of its own, whose predictions count.

Of classes and tokens it averages probabilities, of labels each label's probability, of numbers and
of the operator's own task the outputs themselves.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from app.domain.tasks.classification import ClassificationSpec
from app.domain.tasks.language_model import LanguageModelSpec
from app.domain.tasks.multi_label import MultiLabelSpec
from app.domain.tasks.spec import TaskSpec
from workers.training.base import public_tensors

Average = Callable[[torch.Tensor], torch.Tensor]
"""Makes one network's outputs [n, …] of all members' [members, n, …]."""


class Ensemble(nn.Module):
    """Maps records [n, …] to outputs [n, …] of the same kind as each member's.

    Args:
        members: networks of one kind.
        task: what they learn; it says what their average is.
    """

    def __init__(self, members: Sequence[nn.Module], task: TaskSpec) -> None:
        super().__init__()
        _share_base(members)
        self.members = nn.ModuleList(members)
        self._average = average_of(task)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """Return the average of what the members say."""
        return self._average(torch.stack([member(records) for member in self.members]))


def average_of(task: TaskSpec) -> Average:
    """Return how the members' outputs for a task are averaged."""
    match task:
        case ClassificationSpec() | LanguageModelSpec():
            return _of_classes
        case MultiLabelSpec():
            return _of_labels
    return _of_numbers


def _share_base(members: Sequence[nn.Module]) -> None:
    """Let all members use the first one's public tensors: they are the same, and may be large."""
    first, *others = members
    for name, tensor in public_tensors(first).items():
        path, _, own = name.rpartition(".")
        for member in others:
            layer = member.get_submodule(path)
            shared = first.get_submodule(path)
            if torch.equal(tensor, public_tensors(member)[name]):
                setattr(layer, own, getattr(shared, own))


def _of_classes(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the mean probability."""
    return logits.log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits))


def _of_labels(logits: torch.Tensor) -> torch.Tensor:
    """Return the logit of the mean probability."""
    return logsigmoid(logits).logsumexp(dim=0) - logsigmoid(-logits).logsumexp(dim=0)


def _of_numbers(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.mean(dim=0)

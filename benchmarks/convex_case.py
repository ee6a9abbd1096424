"""A linear head's data with the constants of its loss: what the convex benchmarks train on."""

from dataclasses import dataclass, field
from typing import Final

import torch

from app.accounting.histories.history import Recipe
from app.accounting.histories.strong_convexity import largest_learning_rate
from app.accounting.terms import Neighbours
from app.domain.heads import linear_head
from app.domain.tasks.classification import ClassificationSpec, rows_of
from benchmarks.data import Pictures
from workers.training.examples import Examples, classified
from workers.training.networks.linear_head import LinearHead

PAPER_RECORDS: Final = 11264  # Chien et al. 2024, N.2: a multiple of the largest batch, 512
PAPER_WEIGHT_DECAY: Final = 1e-6 * PAPER_RECORDS
_SHUFFLE_SEED: Final = 20240  # which records are dropped to make the number a multiple
_NORM_MARGIN: Final = 1 - 2.0**-20  # rounding to float32 must not lift a norm above 1


@dataclass(frozen=True, eq=False)
class Case:
    """Records whose features are already as the head sees them, and the loss on them.

    Attributes:
        name: of the data.
        classes: 2 for logistic regression, more for softmax.
        weight_decay: lambda.
        train, test: float32 [n, d] of norm at most 1, labels 0 to classes - 1.
    """

    name: str
    classes: int
    weight_decay: float
    train: Examples = field(repr=False)
    test: Examples = field(repr=False)

    @property
    def records(self) -> int:
        """Return n."""
        return len(self.train)

    @property
    def delta(self) -> float:
        """Return 1/n."""
        return 1 / self.records

    @property
    def smoothness(self) -> float:
        """Return the curvature of one record's loss."""
        return ClassificationSpec(classes=self.classes).bounds.smoothness

    @property
    def lipschitz(self) -> float:
        """Return the gradient bound of one record's loss."""
        return ClassificationSpec(classes=self.classes).bounds.lipschitz

    @property
    def dimension(self) -> int:
        """Return how many weights the head has."""
        return self.train.inputs.shape[1] * (1 if self.classes == 2 else self.classes)

    def recipe(
        self, *, batch_size: int, neighbours: Neighbours, longest_step: bool = False
    ) -> Recipe:
        """Return the recipe: step size 1/(smoothness + weight_decay), or Delete-to-Descent's."""
        step = 1 / (self.smoothness + self.weight_decay)
        if longest_step:
            step = largest_learning_rate(weight_decay=self.weight_decay, smoothness=self.smoothness)
        return Recipe(
            learning_rate=step,
            weight_decay=self.weight_decay,
            smoothness=self.smoothness,
            lipschitz=self.lipschitz,
            batch_size=batch_size,
            batches=self.records // batch_size,
            neighbours=neighbours,
            dimension=self.dimension,
        )

    def head(self) -> LinearHead:
        """Return the head at its start: zeros."""
        return ScaledHead(
            self.train.inputs.shape[1],
            self.classes,
            rows=rows_of(self.classes),
            feature_norm=None,
            bias=0.0,
        )


class ScaledHead(LinearHead):
    """A head on features that ``LinearHead.scaled`` has scaled once, beforehand."""

    def scaled(self, features: torch.Tensor) -> torch.Tensor:
        """Return the features as they are, in float64."""
        return features.double()


def two_digits(pictures: Pictures, *, digits: tuple[int, int] = (3, 8)) -> Case:
    """Return two digits told apart on raw pixels, as Chien et al. 2024 do; no bias."""
    head = LinearHead(_size(pictures.train), 2, rows=1, feature_norm=None, bias=0.0)
    train, test = (_scaled(_only(part, digits), head) for part in (pictures.train, pictures.test))
    largest_batch = 512 if len(train) >= PAPER_RECORDS else 32
    return Case(
        name=f"{pictures.name}: {digits[0]} against {digits[1]}",
        classes=2,
        weight_decay=PAPER_WEIGHT_DECAY,
        train=shuffled(train, min(PAPER_RECORDS, len(train) // largest_batch * largest_batch)),
        test=test,
    )


def of_features(
    name: str, train: Examples, test: Examples, *, weight_decay: float, batch_size: int
) -> Case:
    """Return all classes told apart on features, with the service's own bias.

    Records beyond the last full batch are dropped.
    """
    classes = int(train.target.max()) + 1
    head = LinearHead(
        _size(train),
        classes,
        rows=rows_of(classes),
        feature_norm=None,
        bias=linear_head.DEFAULT_BIAS,
    )
    scaled = _scaled(train, head)
    return Case(
        name=name,
        classes=classes,
        weight_decay=weight_decay,
        train=shuffled(scaled, len(scaled) // batch_size * batch_size),
        test=_scaled(test, head),
    )


def shuffled(examples: Examples, count: int, *, skip: int = 0) -> Examples:
    """Return ``count`` examples after the first ``skip`` of a fixed random order."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(_SHUFFLE_SEED))
    return examples.select(order[skip : skip + count].numpy())


def _only(examples: Examples, digits: tuple[int, int]) -> Examples:
    chosen = sum(examples.target == digit for digit in digits).bool()
    labels = (examples.target[chosen] == digits[1]).long()
    return classified(examples.inputs[chosen], labels)


def _scaled(examples: Examples, head: LinearHead) -> Examples:
    within = head.scaled(examples.inputs) * _NORM_MARGIN
    return classified(within.float(), examples.target)


def _size(examples: Examples) -> int:
    return examples.inputs[0].numel()

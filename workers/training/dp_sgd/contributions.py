"""What each record adds to the gradient of one parameter, in the smallest form that is at hand.

Row i of every tensor is of record i alone. Norms and sums are taken in float64. A sum may round
in any order; how far it can be off is bounded by ``spread`` (docs/guarantees.md, section 8).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import torch

_NUMBERS_AT_ONCE: Final = 1 << 18
# Twice the unit of float64: times the terms that are added up, what rounding hides of a norm.
_ROUNDING: Final = 2.0**-52


class Contribution(Protocol):
    """A parameter's gradient of each of R records."""

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """Return all that it is made of, each tensor [R, …]."""

    def squared_norms(self) -> torch.Tensor:
        """Return at least the squared norm of each record's gradient, float64 [R]."""

    def spread(self) -> torch.Tensor | None:
        """Return places times the norm of what is added up at each, [R]; None: of one place."""

    def add_scaled(self, scale: torch.Tensor, out: torch.Tensor) -> None:
        """Add the sum of all records' gradients, times ``scale`` [R], to ``out``, float64 [size].

        Rows whose scale is zero are finite.
        """

    def whole(self) -> torch.Tensor:
        """Return the gradients themselves, [R, size]."""


@dataclass(frozen=True, eq=False)
class Whole:
    """Gradients as they are, [R, size]."""

    values: torch.Tensor

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """Return the gradients."""
        return (self.values,)

    def squared_norms(self) -> torch.Tensor:
        """Return their squared norms."""
        return _norms(self.values).square_()

    def spread(self) -> None:
        """Return None: nothing is added up within a record."""

    def add_scaled(self, scale: torch.Tensor, out: torch.Tensor) -> None:
        """Add their sum, some columns at a time."""
        columns = max(1, _NUMBERS_AT_ONCE // len(self.values))
        for some, sums in zip(
            torch.split(self.values, columns, dim=1), torch.split(out, columns), strict=True
        ):
            sums.add_(some.double().t().mv(scale))

    def whole(self) -> torch.Tensor:
        """Return the gradients."""
        return self.values


@dataclass(frozen=True, eq=False)
class Product:
    """Sums over places of outer products, of a weight [O, K]: inputs [R, L, K], outputs [R, L, O].

    Goodfellow 2015 (arXiv 1510.01799) for one place; the Gram form for several is Lee & Kifer 2021.
    """

    inputs: torch.Tensor
    outputs: torch.Tensor

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """Return both factors."""
        return self.inputs, self.outputs

    def squared_norms(self) -> torch.Tensor:
        """Return the squared norms, with several places a little more than that."""
        if self.inputs.shape[1] == 1:
            return self._per_place.square().squeeze(1)
        (places, columns), lines = self.inputs.shape[1:], self.outputs.shape[2]
        inputs, outputs = self._grams
        most = self._per_place.sum(dim=1).square_()
        found: torch.Tensor = torch.linalg.vecdot(inputs.flatten(1), outputs.flatten(1))
        terms = places**2 + columns + lines
        return found.clamp_(min=0.0).add_(most, alpha=terms * _ROUNDING)

    def spread(self) -> torch.Tensor | None:
        """Return places times the norms' sum over places."""
        places = self.inputs.shape[1]
        return None if places == 1 else self._per_place.sum(dim=1).mul_(places)

    def add_scaled(self, scale: torch.Tensor, out: torch.Tensor) -> None:
        """Add the sum over records and places in one product of matrices."""
        scaled = (self.outputs * scale[:, None, None]).flatten(0, 1)
        inputs = self.inputs.flatten(0, 1)
        # Apart from what is in out already: its size has no part in this product's rounding.
        out.add_((scaled.t() @ inputs).flatten())

    def whole(self) -> torch.Tensor:
        """Return the gradients."""
        return torch.bmm(self.outputs.mT, self.inputs).flatten(1)

    @cached_property
    def _grams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the products of places with each other, of either factor, [R, L, L]."""
        return torch.bmm(self.inputs, self.inputs.mT), torch.bmm(self.outputs, self.outputs.mT)

    @cached_property
    def _per_place(self) -> torch.Tensor:
        """Return the norm of each outer product, [R, L]."""
        if self.inputs.shape[1] > 1:
            squares = [each.diagonal(dim1=1, dim2=2).clamp(min=0.0) for each in self._grams]
            return squares[0].mul(squares[1]).sqrt_()
        return _norms(self.inputs).mul_(_norms(self.outputs))


@dataclass(frozen=True, eq=False)
class ChannelsLast:
    """Gradients of a kernel [lines, channels, …] that are computed as [lines, …, channels]."""

    computed: Contribution
    channels: int
    lines: int

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """Return what is computed."""
        return self.computed.rows

    def squared_norms(self) -> torch.Tensor:
        """Return the squared norms, which have no order."""
        return self.computed.squared_norms()

    def spread(self) -> torch.Tensor | None:
        """Return what the computed ones have."""
        return self.computed.spread()

    def add_scaled(self, scale: torch.Tensor, out: torch.Tensor) -> None:
        """Add their sum in the kernel's order."""
        total = torch.zeros_like(out)
        self.computed.add_scaled(scale, total)
        out.view(self.lines, self.channels, -1).add_(total.view(self.lines, -1, self.channels).mT)

    def whole(self) -> torch.Tensor:
        """Return the gradients in the kernel's order."""
        computed = self.computed.whole()
        return computed.view(len(computed), self.lines, -1, self.channels).mT.flatten(1)


@dataclass(frozen=True, eq=False)
class TableRows:
    """Gradients of some rows of a table [V, D]: rows int64 [R, L], each once, values [R, L, D].

    A row that is looked up again has zeros where it is repeated.
    """

    index: torch.Tensor
    values: torch.Tensor
    table: int

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """Return rows and values."""
        return self.index, self.values

    def squared_norms(self) -> torch.Tensor:
        """Return the squared norms."""
        return _norms(self.values.flatten(1)).square_()

    def spread(self) -> None:
        """Return None: a record adds to each row at one place."""

    def add_scaled(self, scale: torch.Tensor, out: torch.Tensor) -> None:
        """Add the records' rows to the table's."""
        scaled = (self.values * scale[:, None, None]).flatten(0, 1)
        out.view(self.table, -1).index_add_(0, self.index.flatten(), scaled)

    def whole(self) -> torch.Tensor:
        """Return the gradients of all rows."""
        records, _, width = self.values.shape
        tables = self.values.new_zeros((records, self.table, width))
        index = self.index.unsqueeze(2).expand_as(self.values)
        return tables.scatter_add_(1, index, self.values).flatten(1)


def of_product(inputs: torch.Tensor, outputs: torch.Tensor) -> Contribution:
    """Return outer products summed over places, as factors or whole, whichever is less work.

    Args:
        inputs: [R, L, K].
        outputs: [R, L, O].
    """
    places, columns = inputs.shape[1:]
    lines = outputs.shape[2]
    if places > 1 and places * (columns + lines) >= columns * lines:
        return Whole(torch.bmm(outputs.mT, inputs).flatten(1))
    return Product(_doubled(inputs), _doubled(outputs))


def _norms(values: torch.Tensor) -> torch.Tensor:
    """Return the norms along the last dimension, float64."""
    norms: torch.Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
    return norms


def _doubled(values: torch.Tensor) -> torch.Tensor:
    """Return a copy, as what contributions are made of is overwritten after a pass."""
    return torch.empty(values.shape, dtype=torch.float64, device=values.device).copy_(values)


def of_table(index: torch.Tensor, values: torch.Tensor, *, table: int) -> TableRows:
    """Return the gradients of a table's rows, with those of a row that comes again added up.

    Args:
        index: int64 [R, L].
        values: [R, L, D], the gradient at each place.
        table: how many rows there are.
    """
    first = (index.unsqueeze(2) == index.unsqueeze(1)).to(torch.uint8).argmax(dim=2)
    combined = torch.zeros_like(values, dtype=torch.float64)
    combined.scatter_add_(1, first.unsqueeze(2).expand_as(values), values.double())
    return TableRows(index, combined, table)


def norms_of(parts: Iterable[Contribution]) -> torch.Tensor:
    """Return the norm of each record's gradient over all parameters, float64 [R]."""
    return torch.stack([each.squared_norms() for each in parts], dim=1).sum(dim=1).sqrt_()

"""The reference frame u = (x - c) / w in which an update rule clips, decays and adds noise.

A fixed affine change of coordinates leaves every theorem of docs/guarantees.md as it is, provided
that centre c and scale w do not depend on the training data. Both come from only the architecture,
under public seeds, or from weights that are public.

Positions are float64 whatever the network's own dtype: they carry the noise. The weights are the
position's, rounded once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from app.domain.errors import RunFailedError
from workers.training.networks.base import digest_of
from workers.training.networks.flat import FlatParameters
from workers.training.vectors import pieces

# Public and never changed: the frame of an architecture is the same on every worker.
SEEDS: Final = tuple(range(8))
_SCALE_WITHOUT_RANDOM_TENSORS: Final = 1.0
_DIGITS: Final = 6


class Centre(StrEnum):
    """Where the centre came from."""

    INITIALISATION_MEAN = "initialisation_mean"
    PUBLIC_WEIGHTS = "public_weights"


@dataclass(frozen=True)
class ReferenceFrame:
    """Centre and scale of every trainable tensor, both independent of the training data.

    Attributes:
        scale: positive, one number per tensor, by its name.
        centre: tensor per name on the CPU, broadcastable to the tensor's shape.
        public_tensors: the tensors whose centre is public weights.
    """

    origin: Centre
    scale: Mapping[str, float]
    centre: Mapping[str, torch.Tensor] = field(repr=False)
    public_tensors: tuple[str, ...] = ()
    public_source: Mapping[str, str] | None = None

    @classmethod
    def of(
        cls,
        factory: Callable[[], nn.Module],
        *,
        public_weights: Mapping[str, np.ndarray | torch.Tensor] | None = None,
        public_source: Mapping[str, str] | None = None,
    ) -> "ReferenceFrame":
        """Return the frame of an architecture.

        Several instances are built under ``SEEDS``; torch's own generator is left as it was. A
        tensor that is the same in all of them is constant: it is its own centre. Every other
        tensor is random, with centre 0. A random tensor's scale is the root mean square of its
        entries over all instances: the initialisation's standard deviation. A constant tensor has
        none and takes the median of the random tensors' scales, or 1 if the network has none.

        Args:
            factory: builds the network, drawing from torch's global generator.
            public_weights: the centre instead, by tensor name; published weights that do not
                depend on the training data. A tensor that is missing there or has another shape,
                such as the last layer of a network for other classes, keeps its centre. So do all
                where every public tensor is frozen in the network.
            public_source: what ``public_weights`` are, for the certificate.

        Raises:
            RunFailedError: a tensor of ``public_weights`` that fits the network is not finite.
        """
        # One network at a time: of those before only what is needed of them.
        squares: dict[str, float] = {}
        contents: dict[str, set[str]] = {}
        for seed in SEEDS:
            last: dict[str, torch.Tensor] = {}
            last = built_under(seed, factory)
            for name, tensor in last.items():
                squares[name] = squares.get(name, 0.0) + sum(
                    float(piece.double().square().sum()) for (piece,) in pieces(tensor.reshape(-1))
                )
                contents.setdefault(name, set()).add(digest_of(tensor))
        random = {name for name, found in contents.items() if len(found) > 1}
        # Round to the digits that the certificate prints, so that it states what was used.
        measured = {
            name: float(
                f"{((squares[name] / (len(SEEDS) * last[name].numel())) ** 0.5):.{_DIGITS}g}"
            )
            for name in last
            if name in random
        }
        fallback = median(measured.values()) if measured else _SCALE_WITHOUT_RANDOM_TENSORS
        scale = {name: measured.get(name, fallback) for name in last}
        centre = {
            name: torch.zeros(()) if name in random else tensor for name, tensor in last.items()
        }
        public = _fitting(public_weights or {}, last)
        if not public:
            return cls(origin=Centre.INITIALISATION_MEAN, scale=scale, centre=centre)
        return cls(
            origin=Centre.PUBLIC_WEIGHTS,
            scale=scale,
            centre=centre | public,
            public_tensors=tuple(public),
            public_source=public_source,
        )

    def to_json(self) -> dict[str, Any]:
        """Return what the certificate says of the frame."""
        document: dict[str, Any] = {"centre": str(self.origin), "scale": dict(self.scale)}
        if self.public_tensors:
            document["public_tensors"] = list(self.public_tensors)
        if self.public_source is not None:
            document["public_source"] = dict(self.public_source)
        return document

    def on(self, flat: FlatParameters) -> "FlatFrame":
        """Return the frame for what this process holds of a network's tensors.

        Raises:
            RunFailedError: the tensors are not those of this frame.
        """
        if list(flat.shapes) != list(self.scale):
            raise RunFailedError("the reference frame belongs to another architecture")
        return FlatFrame(
            [
                FramePart(
                    size=flat.own[name].stop - flat.own[name].start,
                    centre=self._centre_of(name, shape, flat.own[name], flat.device),
                    scale=self.scale[name],
                )
                for name, shape in flat.shapes.items()
            ]
        )

    def _centre_of(
        self, name: str, shape: torch.Size, part: slice, device: torch.device
    ) -> torch.Tensor | None:
        """Return a part of a tensor's centre, 1-D; None for zeros."""
        centre = self.centre[name]
        return centre.expand(shape).reshape(-1)[part].to(device) if bool(centre.any()) else None


@dataclass(frozen=True, eq=False)
class FramePart:
    """The frame for a part of one tensor; its centre is 1-D, or None for zeros."""

    size: int
    centre: torch.Tensor | None
    scale: float


class FlatFrame:
    """The frame for what a process holds of each tensor; a position has these in a row.

    A rule works on the position, beside the weights that the network computes with.
    """

    def __init__(self, parts: Sequence[FramePart]) -> None:
        self._parts = parts
        self._sizes = [part.size for part in parts]

    def position_of(self, held: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return u = (x - c) / w as a new buffer, float64."""
        position = torch.empty(sum(self._sizes), dtype=torch.float64, device=held[0].device)
        for part, here, weights in self._each(position, held):
            here.copy_(weights)
            if part.centre is not None:
                here.sub_(part.centre)
            here.div_(part.scale)
        return position

    def weights_at(self, position: torch.Tensor, *, out: Sequence[torch.Tensor]) -> None:
        """Write x = c + w u into ``out``, computed in float64."""
        for part, here, weights in self._each(position, out):
            centre = here if part.centre is None else part.centre
            for moved, there, base in pieces(here, weights, centre):
                if part.centre is None:
                    torch.mul(moved, part.scale, out=there)
                else:
                    torch.add(base, moved, alpha=part.scale, out=there)

    def pull_back_(self, gradient: torch.Tensor) -> torch.Tensor:
        """Turn a gradient by x into the gradient by u, w g, in place."""
        for part, slope in zip(self._parts, torch.split(gradient, self._sizes), strict=True):
            slope.mul_(part.scale)
        return gradient

    def _each(
        self, position: torch.Tensor, held: Sequence[torch.Tensor]
    ) -> Iterator[tuple[FramePart, torch.Tensor, torch.Tensor]]:
        return zip(self._parts, torch.split(position, self._sizes), held, strict=True)


class RawWeights(FlatFrame):
    """The weights themselves, float64: no buffer beside them, nothing to convert.

    A rule that moves or noises weights refuses others; one that does not change them takes any.
    """

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__([])
        self._values = values

    def position_of(self, held: Sequence[torch.Tensor]) -> torch.Tensor:  # noqa: ARG002
        """Return them."""
        return self._values

    def weights_at(self, position: torch.Tensor, *, out: Sequence[torch.Tensor]) -> None:
        """Do nothing: ``position`` and ``out`` are one."""

    def pull_back_(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return ``gradient``."""
        return gradient


def built_under(seed: int, factory: Callable[[], nn.Module]) -> dict[str, torch.Tensor]:
    """Return what a network trains as its factory makes it; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = factory()
    return {
        name: tensor.detach().cpu()
        for name, tensor in module.named_parameters()
        if tensor.requires_grad
    }


def _fitting(
    weights: Mapping[str, np.ndarray | torch.Tensor], network: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return those public tensors that have the name and the shape of one of the network's."""
    fitting: dict[str, torch.Tensor] = {}
    for name, like in network.items():
        if name not in weights or tuple(weights[name].shape) != tuple(like.shape):
            continue
        tensor = torch.as_tensor(weights[name]).detach().to("cpu", like.dtype)
        if not bool(torch.isfinite(tensor).all()):
            raise RunFailedError(f"the public weights' tensor {name!r} is not finite")
        fitting[name] = tensor.clone()
    return fitting

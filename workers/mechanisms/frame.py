"""The reference frame u = (x - c) / w in which an update rule clips, decays and adds noise.

A fixed affine change of coordinates leaves every theorem of docs/guarantees.md as it is, provided
that centre c and scale w do not depend on the training data. Both come from only the architecture,
under public seeds, or from weights that are public.

Positions are float64 whatever the network's own dtype: they carry the noise. The weights are the
position's, rounded once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import nn

from app.domain.errors import RunFailedError
from workers.mechanisms.vectors import pieces
from workers.networks.flat import stretches_of

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
        first = _build_under(SEEDS[0], factory)
        squares = {name: _squares(tensor) for name, tensor in first.items()}
        constant = set(first)
        for seed in SEEDS[1:]:
            other = _build_under(seed, factory)
            constant = {name for name in constant if torch.equal(first[name], other[name])}
            squares = {name: squares[name] + _squares(other[name]) for name in first}
        measured = {
            name: _rounded((squares[name] / (len(SEEDS) * first[name].numel())) ** 0.5)
            for name in first
            if name not in constant
        }
        fallback = median(measured.values()) if measured else _SCALE_WITHOUT_RANDOM_TENSORS
        scale = {name: measured.get(name, fallback) for name in first}
        centre = {name: first[name] if name in constant else torch.zeros(()) for name in first}
        public = _fitting(public_weights or {}, first)
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

    def on(
        self, shapes: Mapping[str, torch.Size], device: torch.device, stretch: slice | None = None
    ) -> "FlatFrame":
        """Return the frame for one flat buffer that holds tensors of ``shapes`` in their order.

        With a ``stretch``, it is for that part of the buffer.

        Raises:
            RunFailedError: the tensors are not those of this frame.
        """
        if list(shapes) != list(self.scale):
            raise RunFailedError("the reference frame belongs to another architecture")
        within = stretches_of(shapes, stretch)
        centre = [
            self.centre[name].expand(shapes[name]).reshape(-1)[part].to(device)
            for name, part in within.items()
        ]
        scale = [
            torch.full((part.stop - part.start,), self.scale[name], device=device)
            for name, part in within.items()
        ]
        return FlatFrame(torch.cat(centre), torch.cat(scale))


class Coordinates(Protocol):
    """Where an update rule works, beside the weights that the network computes with."""

    def position_of(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the position of ``weights``, float64 [size]."""

    def weights_at(self, position: torch.Tensor, *, out: torch.Tensor) -> None:
        """Write the weights at ``position`` into ``out``, in its dtype."""

    def pull_back_(self, gradient: torch.Tensor) -> torch.Tensor:
        """Turn a gradient by the weights into one by the position, in place."""


class RawWeights:
    """The weights themselves, float64: no buffer beside them, nothing to convert.

    A rule that moves or noises weights refuses others; one that does not change them takes any.
    """

    def position_of(self, weights: torch.Tensor) -> torch.Tensor:
        """Return ``weights``."""
        return weights

    def weights_at(self, position: torch.Tensor, *, out: torch.Tensor) -> None:
        """Do nothing: ``position`` and ``out`` are one."""

    def pull_back_(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return ``gradient``."""
        return gradient


class FlatFrame:
    """Centre (of the weights' dtype) and scale (float32) as flat buffers beside the weights."""

    def __init__(self, centre: torch.Tensor, scale: torch.Tensor) -> None:
        self._centre = centre if bool(centre.any()) else None
        self._scale = scale

    def position_of(self, weights: torch.Tensor) -> torch.Tensor:
        """Return u = (x - c) / w as a new buffer."""
        position = torch.empty_like(weights, dtype=torch.float64)
        for here, there, centre, scale in self._pieces(position, weights):
            here.copy_(there)
            if self._centre is not None:
                here.sub_(centre)
            here.div_(scale)
        return position

    def weights_at(self, position: torch.Tensor, *, out: torch.Tensor) -> None:
        """Write x = c + w u into ``out``, computed in float64."""
        for here, there, centre, scale in self._pieces(position, out):
            if self._centre is None:
                torch.mul(scale, here, out=there)
            else:
                torch.addcmul(centre, scale, here, out=there)

    def pull_back_(self, gradient: torch.Tensor) -> torch.Tensor:
        """Turn a gradient by x into the gradient by u, w g, in place."""
        for slope, scale in pieces(gradient, self._scale):
            slope.mul_(scale)
        return gradient

    def _pieces(
        self, position: torch.Tensor, weights: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield stretches of position, weights, centre and scale; no centre shows as the scale."""
        centre = self._scale if self._centre is None else self._centre
        return pieces(position, weights, centre, self._scale)


def _build_under(seed: int, factory: Callable[[], nn.Module]) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = factory()
    return {
        name: tensor.detach().cpu()
        for name, tensor in module.named_parameters()
        if tensor.requires_grad
    }


def _squares(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().sum())


def _rounded(scale: float) -> float:
    """Round to the digits that the certificate prints, so that it states what was used."""
    return float(f"{scale:.{_DIGITS}g}")


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

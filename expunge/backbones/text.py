"""Networks of the library ``transformers``: of tokens, and of images."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn

from app.domain.errors import InvalidInputError
from app.domain.extras import TEXT, loaded
from expunge.backbones.images import Images

# What could name code or weights elsewhere, or other kernels.
_LEFT_OUT: Final = frozenset(
    {
        *("model_type", "auto_map", "quantization_config", "attn_implementation"),
        *("experts_implementation", "use_pretrained_backbone", "dtype", "torch_dtype"),
    }
)


def transformers(
    *,
    input_shape: tuple[int, ...],
    classes: int,  # noqa: ARG001 - the networks have no classifier
    network: str,
    config: Mapping[str, Any] = MappingProxyType({}),
    pooling: str = "mean",
    pad: int | None = None,
    **images: Any,  # noqa: ANN401 - Images checks them
) -> nn.Module:
    """Return a network of ``transformers``; its features are those of its last layer's positions.

    Args:
        input_shape: of a record: [T] tokens, or an image.
        classes: any.
        network: its ``model_type``, such as ``bert`` or ``vit``.
        config: the content of its ``config.json``; what is missing is the library's default.
        pooling: ``mean`` over the positions, or the ``first`` of them.
        pad: the token that fills up short texts; by default the configuration's ``pad_token_id``.
        images: options of ``Images``; by default the configuration's ``image_size``, and 0.5 as
            mean and standard deviation.
    """
    if pooling not in ("mean", "first"):
        raise InvalidInputError("option pooling must be mean or first")
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is ever downloaded
    library = loaded("transformers", extra=TEXT)
    own = {
        name: value
        for name, value in config.items()
        if name not in _LEFT_OUT and not name.startswith("_")
    }
    built_from = library.AutoConfig.for_model(network, **own)
    built: nn.Module = library.AutoModel.from_config(
        built_from, attn_implementation="eager", trust_remote_code=False
    )
    if len(input_shape) == 1:
        pad = getattr(built_from, "pad_token_id", None) if pad is None else pad
        return _Tokens(pad, pooling).put_around(built)
    half = (0.5, 0.5, 0.5)
    known: dict[str, Any] = {
        "size": getattr(built_from, "image_size", None),
        "mean": half,
        "std": half,
    }
    built.register_forward_hook(_Pooled(pooling).features)
    return Images.by(known | images, input_shape).put_before(built)


class _Pooled:
    """Turns a network's answer into features [n, C]."""

    def __init__(self, pooling: str) -> None:
        self._pooling = pooling

    def features(self, _: nn.Module, __: Any, output: Any) -> torch.Tensor:  # noqa: ANN401
        """Return features of a network's answer."""
        return self.pooled(output[0], None)

    def pooled(self, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return [n, C] of [n, T, C], or of an image's [n, C, H, W]."""
        if states.dim() == 4:
            states = states.flatten(2).transpose(1, 2)
        if self._pooling == "first":
            return states[:, 0]
        if mask is None:
            return states.mean(dim=1)
        weights = mask.unsqueeze(2).to(states.dtype)
        return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class _Tokens(_Pooled):
    """Hands tokens to a network, which is to ignore those that only fill up."""

    def __init__(self, pad: int | None, pooling: str) -> None:
        super().__init__(pooling)
        self._pad = pad

    def put_around(self, network: nn.Module) -> nn.Module:
        """Have the network read tokens [n, T] and return features."""
        network.register_forward_pre_hook(self._named, with_kwargs=True)
        network.register_forward_hook(self._masked, with_kwargs=True)
        network.token_mask = self.mask  # type: ignore[assignment]
        return network

    def mask(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return which tokens count, bool [n, T]."""
        return (
            torch.ones_like(tokens, dtype=torch.bool) if self._pad is None else tokens != self._pad
        )

    def _named(
        self, _: nn.Module, inputs: tuple[Any, ...], __: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        (tokens,) = inputs
        return (), {"input_ids": tokens, "attention_mask": self.mask(tokens).to(torch.int64)}

    def _masked(self, *called: Any) -> torch.Tensor:  # noqa: ANN401
        *_, named, output = called
        return self.pooled(output[0], named["attention_mask"])

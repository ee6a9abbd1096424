"""A network's base: the public tensors that it computes with and that no run trains.

Frozen parameters (``requires_grad=False``) and all buffers but the statistics of normalisation
layers, persistent or not. They are what the factory made of them: the same in every build, and the
same after every forward and backward pass. Whatever changes would be state that no guarantee
covers.
"""

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import nn

from app.domain.errors import PlanError
from workers.training.networks.buffers import statistics_of


def public_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the base by name; a tied tensor has each of its names."""
    return {name: tensor.detach() for name, tensor in base_of(module).items()}


def digests_of(module: nn.Module) -> dict[str, str]:
    """Return the SHA-256 of each tensor of the base, in hex: of its type, shape and bytes.

    One with several names, as members of an ensemble share it, is read once.
    """
    named = base_of(module)
    digests = {key: digest_of(each) for key, each in {id(t): t for t in named.values()}.items()}
    return {name: digests[id(tensor)] for name, tensor in named.items()}


def base_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the very tensors of the base, by name."""
    statistics = statistics_of(module)
    frozen = {
        name: tensor
        for name, tensor in module.named_parameters(remove_duplicate=False)
        if not tensor.requires_grad
    }
    constant = {
        name: buffer
        for name, buffer in module.named_buffers(remove_duplicate=False)
        if name not in statistics
    }
    return frozen | constant


def require_same(now: Mapping[str, str], before: Mapping[str, str], fault: str) -> None:
    """Raise ``PlanError`` with a tensor's name, and ``fault``, if two bases differ."""
    name = first_difference(now, before)
    if name is not None:
        raise PlanError(f"the network's public tensor {name!r} {fault}")


def first_difference(now: Mapping[str, str], before: Mapping[str, str]) -> str | None:
    """Return the first name whose digests differ, or that only one side has; None without any."""
    names = sorted(now.keys() | before.keys())
    return next((name for name in names if now.get(name) != before.get(name)), None)


def digest_of(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's type, shape and bytes, in hex."""
    header = json.dumps([str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
    content = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    digest = hashlib.sha256(header.encode() + b"\n")
    digest.update(content.data)
    return digest.hexdigest()

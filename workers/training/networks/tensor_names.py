"""Matches the tensor names of weights from elsewhere with those of a network.

Training tools put a prefix before every name: ``model.`` by Lightning, ``module.`` by
DataParallel, ``_orig_mod.`` by ``torch.compile``. A prefix is left out only if what remains are
exactly the network's names, so no tensor is dropped or guessed.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar

import torch
from torch import nn

from app.domain.errors import RunFailedError

Tensor = TypeVar("Tensor")

_COMPILED: Final = "_orig_mod."
_SHOWN: Final = 3


def renamed(tensors: Mapping[str, Tensor], own: Collection[str]) -> Mapping[str, Tensor]:
    """Return the tensors under the network's names.

    Args:
        tensors: by the names in a file.
        own: the network's names.

    Raises:
        RunFailedError: they are not the network's, with or without a prefix; it names them.
    """
    names = set(own)
    if tensors.keys() == names:
        return tensors
    plain = {name.replace(_COMPILED, ""): tensor for name, tensor in tensors.items()}
    prefix = _prefix(plain, names)
    if len(plain) == len(tensors) and plain.keys() == {prefix + name for name in names}:
        return {name.removeprefix(prefix): tensor for name, tensor in plain.items()}
    missing = sorted(names - {name.removeprefix(prefix) for name in plain})
    unknown = sorted(plain.keys() - {prefix + name for name in names})
    faults = [f"they lack {_listed(missing)}"] if missing else []
    faults += [f"they hold {_listed(unknown)}, which the network has not"] if unknown else []
    raise RunFailedError(
        f"the weights' tensors are not the network's: {'; '.join(faults)}. Save the state_dict of "
        "a network that this factory builds"
    )


def require_tied_alike(module: nn.Module, tensors: Mapping[str, Any]) -> None:
    """Raise ``RunFailedError`` where weights differ under two names of a network's one tensor."""
    first = dict[int, str]()
    for name, own in module.state_dict(keep_vars=True).items():
        kept = first.setdefault(id(own), name)
        if kept == name or not {kept, name} <= tensors.keys():
            continue
        one, other = (torch.as_tensor(tensors[each]).to(own) for each in (kept, name))
        if not torch.equal(one, other):
            raise RunFailedError(
                f"the weights differ in {kept!r} and {name!r}, which are one tensor of the network"
            )


def _prefix(given: Collection[str], own: Collection[str]) -> str:
    """Return the prefix under which most of the network's names are given; the shortest."""
    ends = {
        name.removesuffix(wanted)
        for wanted in sorted(own, key=len)[-1:]
        for name in given
        if name == wanted or name.endswith(f".{wanted}")
    }
    return max(
        sorted({"", *ends}, key=len),
        key=lambda prefix: sum(prefix + name in given for name in own),
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"

"""All that a network holds, wherever it holds it: by this starts and backbones are compared.

A tensor may be a parameter, a buffer (persistent or not), or lie in an attribute: of a layer, of
its class, in a list, or in what a function of it encloses. Numbers and texts are compared like
tensors: a counter is state, too.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from app.domain.architectures import BaseDigest
from app.domain.errors import PlanError, RunFailedError
from workers.training.networks.base import base_of, digest_of, digests_of, first_difference

_OF_TORCH: Final = frozenset(vars(nn.Module()))
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")
"""Numbered by their places: PyTorch numbers them across all networks of a process."""
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_DEPTH: Final = 6
_PUBLIC_SEED: Final = 29


def copied(module: nn.Module) -> nn.Module:
    """Return a network that shares no memory with what its factory keeps.

    Public tensors, which nothing trains, stay shared: members of an ensemble stand on one base.

    Raises:
        PlanError: it cannot be copied.
    """
    shared: dict[int, Any] = {id(tensor): tensor for tensor in base_of(module).values()}
    try:
        return copy.deepcopy(module, shared)
    except Exception as error:
        raise PlanError(
            "the network cannot be copied by copy.deepcopy, so two networks of its factory may "
            f"share what is trained: {type(error).__name__}"
        ) from error


def start_of(factory: Callable[[], nn.Module]) -> Mapping[str, str]:
    """Return the digests of all that a network holds as its factory makes it, under a public seed.

    It is the same before and after the training of any other network: a start is a function of its
    seed alone (docs/guarantees.md, section 10).
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_PUBLIC_SEED)
        module = factory()
    public = base_of(module).keys()  # which ``pinned`` compares
    return {name: each for name, each in digests_held(module).items() if name not in public}


def require_same_start(factory: Callable[[], nn.Module], before: Mapping[str, str]) -> None:
    """Check that networks start as they did before records were read.

    Raises:
        PlanError: they do not; the message names what differs.
    """
    name = first_difference(start_of(factory), before)
    if name is not None:
        raise PlanError(
            f"the factory starts {name!r} otherwise after another network was trained: what it "
            "keeps from one network to the next could carry forgotten records into a fresh "
            "start. Build everything anew in each call"
        )


def pinned(
    factory: Callable[[], nn.Module], base: BaseDigest | None, start: Mapping[str, str]
) -> Callable[[], nn.Module]:
    """Return the factory for networks on this very base, which start as before the run.

    Each build compares what the factory makes under a public seed with ``start``, what it made
    before any record was read, and so before any other network was trained.

    Raises:
        RunFailedError: raised by the factory on another base.
        PlanError: raised by the factory if it starts its networks otherwise.
    """

    def build() -> nn.Module:
        require_same_start(factory, start)
        module = factory()
        if BaseDigest.of(digests_of(module)) != base:
            raise RunFailedError(
                "the factory's frozen parameters or buffers have changed since the run began"
            )
        return module

    return build


def digests_held(module: nn.Module) -> dict[str, str]:
    """Return the digest of each thing that a network holds, by where it is."""
    seen: set[int] = set()
    return {
        name: digest_of(value) if isinstance(value, torch.Tensor) else _digest_of_plain(value)
        for path, layer in module.named_modules()
        for name, value in _of_layer(f"{path}." if path else "", layer, seen)
    }


def _of_layer(path: str, layer: nn.Module, seen: set[int]) -> Iterator[tuple[str, Any]]:
    seen.add(id(layer))
    for name, tensor in layer.named_parameters(recurse=False, remove_duplicate=False):
        yield path + name, tensor
    for name, buffer in layer.named_buffers(recurse=False, remove_duplicate=False):
        yield path + name, buffer
    own = [(name, value) for name, value in vars(layer).items() if name not in _OF_TORCH]
    for name in _HOOKS:
        own += [(f"{name}.{at}", hook) for at, hook in enumerate(getattr(layer, name).values())]
    for name, value in own:
        yield from _in_value(path + name, value, seen, _DEPTH)
    for kind in type(layer).__mro__:
        if kind is not object and not kind.__module__.startswith("torch."):
            for name, value in vars(kind).items():
                if not name.startswith("__"):
                    yield from _in_value(f"{path}{kind.__name__}.{name}", value, seen, _DEPTH)


def _in_value(where: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    if isinstance(value, (*_PLAIN, torch.Tensor, np.ndarray)):
        yield where, value
        return
    if depth == 0 or id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        for name, layer in value.named_modules():
            if name == "" or id(layer) not in seen:
                yield from _of_layer(f"{where}.{name}." if name else f"{where}.", layer, seen)
        return
    for name, inner in _parts(value):
        yield from _in_value(f"{where}.{name}", inner, seen, depth - 1)


def _parts(value: Any) -> Iterator[tuple[object, Any]]:  # noqa: ANN401
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from enumerate(value)
    elif callable(value) and hasattr(value, "__closure__"):
        for place, cell in enumerate(value.__closure__ or ()):
            try:
                yield place, cell.cell_contents
            except ValueError:  # not filled yet
                continue
    elif not type(value).__module__.startswith(("torch", "builtins")):
        yield from getattr(value, "__dict__", {}).items()


def _digest_of_plain(value: object) -> str:
    if isinstance(value, np.ndarray):
        value = (str(value.dtype), value.shape, np.ascontiguousarray(value).tobytes())
    return hashlib.sha256(repr(value).encode()).hexdigest()

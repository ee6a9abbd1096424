"""Converts a PyTorch checkpoint to safetensors.

``.pt``, ``.pth``, ``.ckpt`` and ``.bin`` files are pickles. Only tensors and plain containers are
read (``weights_only``), never code.
"""

import io
import re
from collections.abc import Mapping
from typing import Any, Final

import safetensors.torch
import torch

from app.domain.errors import InvalidInputError

# Older releases ran code from such files in spite of weights_only: CVE-2025-32434.
_SAFE_SINCE: Final = (2, 6)
_OF_OPTIMIZERS: Final = "param_groups"
_COUNTS: Final = (torch.uint8, torch.int64)
_DEEPEST: Final = 5
_MOST_SHOWN: Final = 8
_GLOBAL: Final = re.compile(r"GLOBAL ([\w.]+)")
_STATE_DICT: Final = "torch.save(network.state_dict(), FILE)"


def converted(content: bytes, key: str | None = None) -> bytes:
    """Return a checkpoint's weights as a safetensors file, with the names that they have there.

    Args:
        content: what ``torch.save`` wrote.
        key: where the weights are in it, with dots between nested names; None takes the only ones.

    Raises:
        InvalidInputError: it holds other objects than weights, or none, or several sets of them,
            such as a moving average beside the weights.
    """
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release < _SAFE_SINCE:
        raise InvalidInputError(
            f"PyTorch {torch.__version__} may run code from such a file (CVE-2025-32434): install "
            "2.6 or later, or save the weights as safetensors"
        )
    try:
        document = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever damaged files lead to
        raise InvalidInputError(_unreadable(error)) from error
    tensors = _weights(document, key)
    return safetensors.torch.save({name: _plain(name, value) for name, value in tensors.items()})


def _unreadable(error: Exception) -> str:
    named = _GLOBAL.search(str(error))
    if named is None:
        return f"it is not a checkpoint that PyTorch can read ({type(error).__name__})"
    return (
        f"it holds an object of {named[1]}, and only tensors are read: load the file where it was "
        f"written, and save the weights alone with {_STATE_DICT}"
    )


def _weights(document: object, key: str | None) -> Mapping[str, Any]:
    """Return the state dict in a checkpoint."""
    found = dict(_state_dicts(document))
    if key is not None:
        if key not in found:
            raise InvalidInputError(f"it has no weights under {key!r}, but under {_listed(found)}")
        return found[key]
    if not found:
        raise InvalidInputError(
            f"it holds no weights by name, but {type(document).__name__}: write {_STATE_DICT}"
        )
    if len(found) > 1:
        raise InvalidInputError(
            f"it holds several sets of weights: choose one with --key: {_listed(found)}"
        )
    return next(iter(found.values()))


def _state_dicts(
    document: object, path: str = "", depth: int = 0
) -> list[tuple[str, Mapping[Any, Any]]]:
    """Return the mappings of names to weights in nested mappings and lists, each with its path."""
    if isinstance(document, list) and not any(map(torch.is_tensor, document)):
        document = {str(index): value for index, value in enumerate(document)}
    elif not isinstance(document, Mapping) or _OF_OPTIMIZERS in document:
        return []
    named = {name: value for name, value in document.items() if isinstance(name, str)}
    arrays = [v for v in named.values() if isinstance(v, torch.Tensor) and v.dim() > 0]
    # Others are states of a generator, counts or losses.
    found = [(path, document)] if any(v.dtype not in _COUNTS for v in arrays) else []
    for name, value in named.items() if depth < _DEEPEST else ():
        found += _state_dicts(value, f"{path}.{name}".lstrip("."), depth + 1)
    return found


def _plain(name: object, value: object) -> torch.Tensor:
    """Return a tensor of its own that safetensors can store."""
    if not isinstance(name, str) or not isinstance(value, torch.Tensor):
        raise InvalidInputError(f"its entry {name!r} is {type(value).__name__}, not a tensor")
    if value.is_quantized or value.layout is not torch.strided or value.is_complex():
        raise InvalidInputError(f"its tensor {name!r} is quantised, sparse or complex")
    return value.detach().clone(memory_format=torch.contiguous_format)


def _listed(found: Mapping[str, object]) -> str:
    shown = [repr(name) for name in found][:_MOST_SHOWN]
    return ", ".join(shown) if shown else "no name"

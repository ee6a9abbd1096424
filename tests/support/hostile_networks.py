"""Factories and backbones that keep something of what they saw, in every place that Python has.

Each function builds a network of 6 numbers to 2. ``FACTORIES`` keep something from one network to
the next; ``BACKBONES`` keep something of records, or look at their neighbours.
"""

import random
import tempfile
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

_SEEN: dict[str, Any] = {}


def clean() -> None:
    """Forget what the networks of an earlier test have left."""
    _SEEN.clear()
    cached.cache_clear()
    Shared.layer = nn.Linear(6, 6)
    Shared.total = torch.zeros(())
    _Remembering.largest = 1.0
    FILE.unlink(missing_ok=True)


FILE = Path(tempfile.gettempdir()) / "expunge-hostile-network"


@lru_cache
def cached(kind: str) -> nn.Module:
    layer: nn.Module = nn.BatchNorm1d(6) if kind == "normalisation" else nn.Linear(6, 6)
    if kind == "zeros":
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return layer


def _through(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 2))


class Shared(nn.Module):
    """A layer of the class, which its networks share."""

    layer = nn.Linear(6, 6)
    total = torch.zeros(())

    def __init__(self, *, registered: bool = True) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        if registered:
            self.middle = Shared.layer

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


def learned_by_the_last(*, place: str):
    """Return a factory whose networks start where the last one ended, kept in ``place``."""

    def build():
        module = _through(nn.Linear(6, 6))
        last = _SEEN.get(place)
        if place == "file" and FILE.exists():
            last = torch.load(FILE)
        if last is not None:
            with torch.no_grad():
                module[1].weight.copy_(last.weight if isinstance(last, nn.Module) else last)
        if place == "module":
            _SEEN[place] = module[1]
        elif place == "hook":
            module[1].register_forward_hook(lambda layer, *_: _SEEN.update(hook=layer.weight))
        elif place == "file":
            module[1].register_forward_hook(lambda layer, *_: torch.save(layer.weight, FILE))
        return module

    return build


def counting():
    """Return a network whose start counts the ones before it."""
    _SEEN["count"] = _SEEN.get("count", 0) + 1
    module = _through(nn.Linear(6, 6))
    nn.init.constant_(module[1].bias, _SEEN["count"])
    return module


def by_python():
    """Return a network drawn by Python's own generator, which goes on from network to network."""
    module = _through(nn.Linear(6, 6))
    nn.init.constant_(module[1].bias, random.random())
    return module


def signs():
    """Return a network that starts at the signs of learned weights."""
    module = _through(nn.Linear(6, 6))
    with torch.no_grad():
        numbers = torch.randn(6, 6, generator=torch.Generator().manual_seed(5))
        module[1].weight.copy_(numbers.sign())
    return module


class InList(nn.Module):
    """Shares a buffer that lies in a list."""

    kept = [torch.zeros(6)]  # noqa: RUF012 - shared on purpose

    def __init__(self):
        super().__init__()
        self.layer, self.found = nn.Linear(6, 2), InList.kept

    def forward(self, x):
        self.found[0] += x.detach().sum(0)
        return self.layer(x + 1e-3 * self.found[0])


_KEPT = nn.Linear(6, 6)


def enclosing(kept):
    """Return a factory that encloses a layer."""
    return lambda: _through(kept)


def by_default(kept=_KEPT):
    """Return a network with a layer that is a default argument."""
    return _through(kept)


FACTORIES = {
    "a cached layer": lambda: _through(cached("drawn")),
    "a cached layer of zeros": lambda: _through(cached("zeros")),
    "a cached normalisation": lambda: _through(cached("normalisation")),
    "a layer of the class": Shared,
    "the last one's layer, in a global": learned_by_the_last(place="module"),
    "the last one's layer, by a hook": learned_by_the_last(place="hook"),
    "the last one's layer, in a file": learned_by_the_last(place="file"),
    "a count": counting,
    "Python's generator": by_python,
    "learned signs": signs,
    "a list of the class": InList,
    "a default argument": by_default,
    "a closure": enclosing(nn.Linear(6, 6)),
}


class _Remembering(nn.Module):
    """Divides by the largest number so far, kept in one of many places."""

    largest = 1.0

    def __init__(self, place: str) -> None:
        super().__init__()
        self.layer, self.place = nn.Linear(6, 2), place
        self.kept: Any = {"list": [1.0], "dict": {"most": 1.0}, "deque": deque([1.0], 1)}.get(place)
        if place == "buffer":
            self.register_buffer("most", torch.ones(()), persistent=False)
        if place == "persistent":
            self.register_buffer("most", torch.ones(()))
        if place in ("attribute", "tensor"):
            self.most = 1.0 if place == "attribute" else torch.ones(())
        if place == "closure":
            most = [1.0]

            def through(value: float) -> float:
                most[0] = max(most[0], value)
                return most[0]

            self.through = through
        if place == "hook":
            state = {"most": 1.0}

            def hook(_, inputs):
                state["most"] = max(state["most"], float(inputs[0].abs().max()))
                return (inputs[0] / state["most"],)

            self.layer.register_forward_pre_hook(hook)

    def _most(self, value: float) -> float:  # noqa: PLR0911 - a place each
        match self.place:
            case "list" | "deque":
                self.kept[0] = max(self.kept[0], value)
                return self.kept[0]
            case "dict":
                self.kept["most"] = max(self.kept["most"], value)
                return self.kept["most"]
            case "buffer" | "persistent" | "tensor":
                self.most = torch.maximum(self.most, torch.tensor(value))
                return float(self.most)
            case "attribute":
                self.most = max(self.most, value)
                return self.most
            case "class":
                _Remembering.largest = max(_Remembering.largest, value)
                return _Remembering.largest
            case "global":
                _SEEN["most"] = max(_SEEN.get("most", 1.0), value)
                return _SEEN["most"]
            case "file":
                before = float(FILE.read_text()) if FILE.exists() else 1.0
                FILE.write_text(str(max(before, value)))
                return max(before, value)
            case "closure":
                return self.through(value)
            case _:
                return 1.0

    def forward(self, x):
        x = x.flatten(1)
        return torch.tanh(self.layer(x / self._most(float(x.abs().max()))))


class Beside(nn.Module):
    """Computes with the other records of the batch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(6, 2), how

    def forward(self, x):
        x = x.flatten(1)
        match self.how:
            case "mean":
                x = x - x.mean(0)
            case "place":
                x = x + torch.arange(len(x))[:, None] * 0.1
            case "longest":  # what is short has as many zeros as the longest beside it leaves
                used = x.shape[1] - (x.flip(1).cumsum(1) == 0).all(0).sum()
                x = x / used
            case "first":
                x = x + x[:1] * (x.abs().sum(1, keepdim=True) < x.abs().sum(1).max())
            case "count":
                x = x * len(x)
        return torch.tanh(self.layer(x))


_PLACES = ("buffer", "persistent", "attribute", "tensor", "list", "dict", "deque", "class")
BACKBONES = {
    **{f"remembers in {place}": place for place in (*_PLACES, "global", "file", "closure", "hook")},
    **{f"beside: {how}": how for how in ("mean", "place", "longest", "first", "count")},
}


def backbone(name: str) -> nn.Module:
    """Return one of the ``BACKBONES``."""
    kind = Beside if name.startswith("beside") else _Remembering
    return kind(BACKBONES[name])

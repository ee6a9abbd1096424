"""Notes what each layer with trainable parameters is called with, and what its output is worth."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from app.domain.errors import PlanError
from workers.training.dp_sgd.contributions import Contribution, Whole
from workers.training.dp_sgd.rules import Call, contributions_of, is_unit
from workers.training.networks.linear_head import LinearHead
from workers.training.networks.ridge_head import RidgeHead
from workers.training.tasks.task import INPUTS, Batch, Task


@dataclass
class _Unit:
    """A layer whose calls are noted, with its trainable parameters by name."""

    path: str
    layer: nn.Module
    trained: dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class _Noted:
    unit: _Unit
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    edge: GradientEdge
    versions: tuple[int, ...]


@dataclass
class Capture:
    """Computes losses, and each record's contribution to the gradient of each parameter.

    Attributes:
        module: whose layers are watched.
        parameters: the trainable ones, by name.
    """

    module: nn.Module
    parameters: dict[str, nn.Parameter]
    _calls: list[_Noted] | None = field(default=None, repr=False)

    def losses(self, task: Task, batch: Batch) -> tuple[torch.Tensor, list[_Noted]]:
        """Return each record's loss, and what was noted on the way."""
        noted: list[_Noted] = []
        self._calls = noted
        try:
            return task.loss(self.module, batch), noted
        finally:
            self._calls = None

    def contributions(self, task: Task, batch: Batch) -> dict[str, Contribution]:
        """Return what each record contributes, by parameter; unused ones are left out.

        Raises:
            PlanError: a layer is used in a way that has no gradient per record.
        """
        losses, noted = self.losses(task, batch)
        return self.of(losses, noted, len(batch[INPUTS]))

    def of(
        self, losses: torch.Tensor, noted: list[_Noted], records: int, *, again: bool = False
    ) -> dict[str, Contribution]:
        """Return the same of losses that were computed; ``again`` leaves the graph for more."""
        if not noted:
            return {}
        gradients = torch.autograd.grad(
            losses.sum(), [call.edge for call in noted], allow_unused=True, retain_graph=again
        )
        found: dict[int, list[Contribution]] = {}
        with torch.no_grad():
            for call, gradient in zip(noted, gradients, strict=True):
                if gradient is None:
                    continue
                unit = call.unit
                _require_unchanged(call)
                _require_rows(call, gradient, records)
                used = Call(unit.layer, call.args, call.kwargs, gradient, unit.trained)
                for name, each in contributions_of(used).items():
                    found.setdefault(id(unit.trained[name]), []).append(each)
        return {
            name: _together(found[id(parameter)])
            for name, parameter in self.parameters.items()
            if id(parameter) in found
        }

    def note(
        self,
        unit: _Unit,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,  # noqa: ANN401 - a layer may return anything
    ) -> None:
        """Note a call during a forward pass."""
        if self._calls is None:
            return
        outputs = (out,) if isinstance(out, torch.Tensor) else out
        first = outputs[0] if isinstance(outputs, tuple) and outputs else None
        if not isinstance(first, torch.Tensor) or any(
            each is not None and (not isinstance(each, torch.Tensor) or each.requires_grad)
            for each in outputs[1:]
        ):
            raise PlanError(
                f"layer {unit.path!r} ({type(unit.layer).__name__}) returns more than one tensor, "
                "so DP-SGD has no gradient of each record for it"
            )
        if first.requires_grad:
            edge = get_gradient_edge(first)
            self._calls.append(_Noted(unit, args, kwargs, edge, _versions(args, kwargs)))


@contextmanager
def capturing(module: nn.Module) -> Iterator[Capture]:
    """Watch a module's layers; the hooks are always removed afterwards."""
    named = {name: each for name, each in module.named_parameters() if each.requires_grad}
    capture = Capture(module, named)
    hooks = []
    try:
        for unit in _units(module):

            def hook(
                _: nn.Module,
                args: tuple[Any, ...],
                kwargs: dict[str, Any],
                out: Any,  # noqa: ANN401
                unit: _Unit = unit,
            ) -> None:
                capture.note(unit, args, kwargs, out)

            hooks.append(unit.layer.register_forward_hook(hook, with_kwargs=True))
        yield capture
    finally:
        for each in hooks:
            each.remove()


def _units(module: nn.Module, path: str = "") -> Iterator[_Unit]:
    """Yield what to watch: layers with a rule, and whole parts with parameters of their own."""
    seen: set[int] = set()

    def walk(layer: nn.Module, path: str) -> Iterator[_Unit]:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        direct = {n: p for n, p in layer.named_parameters(recurse=False) if p.requires_grad}
        parametrized = hasattr(layer, "parametrizations")
        if direct and isinstance(layer, LinearHead | RidgeHead):
            yield _Unit(path, layer.product, dict(direct))
        elif direct or parametrized:
            trained = direct
            if is_unit(layer):
                trained = {n: p for n, p in layer.named_parameters() if p.requires_grad}
            yield _Unit(path, layer, dict(trained))
            if is_unit(layer):
                return
        for name, child in layer.named_children():
            yield from walk(child, f"{path}.{name}".lstrip("."))

    yield from walk(module, path)


def _together(uses: list[Contribution]) -> Contribution:
    """Return the contribution of a parameter that is used once or more often."""
    if len(uses) == 1:
        return uses[0]
    total = uses[0].whole()
    for each in uses[1:]:
        total = total + each.whole()
    return Whole(total)


def _require_rows(call: _Noted, gradient: torch.Tensor, records: int) -> None:
    tensors = [e for e in (*call.args, *call.kwargs.values()) if isinstance(e, torch.Tensor)]
    first = tensors[0] if tensors else gradient
    if gradient.dim() and first.dim() and len(gradient) == len(first) == records:
        return
    parameter = next(iter(call.unit.trained))
    raise PlanError(
        f"DP-SGD needs the gradient of each record by itself, but the network hides records from "
        f"{f'{call.unit.path}.{parameter}'.lstrip('.')!r}: the first dimension of what its layer "
        "reads and returns must be the records"
    )


def _require_unchanged(call: _Noted) -> None:
    if _versions(call.args, call.kwargs) != call.versions:
        raise PlanError(
            f"the network changes in place what layer {call.unit.path!r} read, so DP-SGD has no "
            "gradient of each record for it: avoid in-place operations"
        )


def _versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    given = (*args, *kwargs.values())
    return tuple(each._version for each in given if isinstance(each, torch.Tensor))  # noqa: SLF001

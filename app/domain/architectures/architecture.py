"""Which network a model is: a zoo architecture with its options, or the operator's own factory.

The spec is data; ``workers/training/networks/architectures.py`` builds the network. A factory is
called only if the worker's settings allow it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from app.domain.architectures.backbone import BackboneUse
from app.domain.checks import is_number, known_fields
from app.domain.errors import InvalidInputError

NAMES: Final = ("logistic", "mlp", "cnn", "linear_head", "ridge_head", "ensemble", "custom")
ENSEMBLE: Final = "ensemble"
_FIELDS: Final = frozenset({"name", "options", "factory", "backbone", "members", "of"})
_NOT_MEMBERS: Final = ("linear_head", "ridge_head", "ensemble")
MOST_MEMBERS: Final = 256
_MOST_LAYERS: Final = 64
_SMALLEST_RANGE: Final = 1e-6
SHIPPED: Final = tuple(
    f"expunge.backbones:{name}"
    for name in ("torchvision", "timm", "transformers", "efficientnet_lite0", "resemblyzer")
)
"""Our own factories, which need no allow-list: see ``expunge/backbones``."""
IMPORT_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class ArchitectureSpec:
    """A network's description.

    Attributes:
        name: ``logistic``, ``mlp``, ``cnn``, ``linear_head``, ``ridge_head``, ``ensemble`` or
            ``custom``.
        options: ``mlp``: ``hidden``, the widths of its hidden layers. ``cnn``: ``channels``, one
            convolution and halving per entry. ``linear_head``: ``bias``, the value of the constant
            feature, at least 0 and below 1 (default 0.1), and ``feature_norm``, a public bound that
            divides the features; without it each record is scaled to the same norm. ``ridge_head``:
            ``feature_range``, a public bound to which features are clipped, and of a regression
            ``target_range``, a public bound to which targets are clipped, after the task's offset
            and scale. ``custom``: the factory's keyword arguments.
        factory: import path ``package.module:factory``; only for ``custom``.
        backbone: the public weights that the network builds on, if any; each member of an ensemble
            does.
        members: of an ensemble: how many networks it averages.
        of: of an ensemble: what each member is, without a backbone of its own.

    Raises:
        InvalidInputError: the name, an option or the factory is not allowed.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    factory: str | None = None
    backbone: BackboneUse | None = None
    members: int | None = None
    of: "ArchitectureSpec | None" = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise _refusal(f"name must be one of {', '.join((*NAMES, *PRESETS))}")
        if not isinstance(self.options, Mapping) or not all(
            isinstance(option, str) for option in self.options
        ):
            raise _refusal("options must be an object with text keys")
        object.__setattr__(self, "options", dict(self.options))
        if self.name != ENSEMBLE and (self.members, self.of) != (None, None):
            raise _refusal("members and of are for the name 'ensemble' only")
        if self.member.name == "cnn" and self.on_features:
            raise _refusal(
                "cnn reads images, and a frozen backbone gives flat features; "
                "use logistic, mlp or custom"
            )
        if self.name == "custom":
            self._check_custom()
            return
        if self.name == ENSEMBLE:
            self._check_ensemble()
        if self.factory is not None:
            raise _refusal("factory is for the name 'custom' only")
        _OPTION_CHECKS[self.name](self.options)

    def _check_custom(self) -> None:
        if not isinstance(self.factory, str) or not IMPORT_PATH.fullmatch(self.factory):
            raise _refusal("factory must be an import path such as 'package.module:factory'")
        for reserved in ("input_shape", "classes"):
            if reserved in self.options:
                raise _refusal(f"option {reserved!r} is set by Expunge from the dataset")

    def _check_ensemble(self) -> None:
        if type(self.members) is not int or not 1 <= self.members <= MOST_MEMBERS:
            raise _refusal(f"members must be a whole number from 1 to {MOST_MEMBERS}")
        if not isinstance(self.of, ArchitectureSpec):
            raise _refusal("of must say what each member is")
        if self.of.name in _NOT_MEMBERS:
            raise _refusal(
                f"a {self.of.name} cannot be a member of an ensemble: heads forget "
                "exactly by themselves, and ensembles do not nest"
            )
        if self.of.backbone is not None:
            raise _refusal("give the backbone to the ensemble, not to of")

    @property
    def member(self) -> "ArchitectureSpec":
        """What one training trains: a member of an ensemble, else the network itself."""
        return self if self.of is None else replace(self.of, backbone=self.backbone)

    @property
    def networks(self) -> int:
        """How many networks the model consists of."""
        return self.members or 1

    @property
    def on_features(self) -> bool:
        """Whether the network reads a frozen backbone's features instead of the records'."""
        return self.backbone is not None and self.backbone.frozen

    @property
    def without_backbone(self) -> "ArchitectureSpec":
        """The same network without its backbone."""
        return replace(self, backbone=None)

    @classmethod
    def from_json(cls, document: object) -> "ArchitectureSpec":
        """Parse JSON, where a preset's name expands; ``InvalidInputError`` if it is malformed."""
        fields = known_fields(document, "architecture", _FIELDS)
        name = fields.get("name")
        if not isinstance(name, str):
            raise _refusal("name must be text")
        options, backbone, of = (fields.get(each) for each in ("options", "backbone", "of"))
        use = None if backbone is None else BackboneUse.from_json(backbone)
        if name in PRESETS:
            if options or not {"factory", "members", "of"}.isdisjoint(fields):
                raise _refusal(f"the preset {name!r} takes no options")
            return replace(PRESETS[name], backbone=use)
        return cls(
            name=name,
            options={} if options is None else options,
            factory=fields.get("factory"),
            backbone=use,
            members=fields.get("members"),
            of=None if of is None else cls.from_json(of),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain JSON values."""
        document: dict[str, Any] = {"name": self.name, "options": dict(self.options)}
        if self.factory is not None:
            document["factory"] = self.factory
        if self.backbone is not None:
            document["backbone"] = self.backbone.to_json()
        if self.of is not None:
            document |= {"members": self.members, "of": self.of.to_json()}
        return document


def is_allowed(factory: str, allowed: Sequence[str]) -> bool:
    """Return whether a factory is shipped, or allowed by its path or as ``module:*``."""
    return factory in (*SHIPPED, *allowed) or f"{factory.partition(':')[0]}:*" in allowed


def _refusal(reason: str) -> InvalidInputError:
    return InvalidInputError(f"architecture: {reason}")


def _only(name: str, options: Mapping[str, Any], *known: str) -> None:
    for option in options:
        if option not in known:
            raise _refusal(f"{name} takes no option {option!r}")


def _check_widths(name: str, option: str, options: Mapping[str, Any], *, fewest: int) -> None:
    _only(name, options, option)
    widths = options.get(option)
    if (
        not isinstance(widths, list | tuple)
        or not fewest <= len(widths) <= _MOST_LAYERS
        or not all(type(width) is int and width >= 1 for width in widths)
    ):
        raise _refusal(
            f"{name} needs {option!r}, a list of {fewest} to {_MOST_LAYERS} "
            "whole numbers of at least 1"
        )


def _check_linear_head(options: Mapping[str, Any]) -> None:
    _only("linear_head", options, "bias", "feature_norm")
    bias, norm = options.get("bias", 0.0), options.get("feature_norm")
    if not is_number(bias, least=0, below=1):
        raise _refusal("bias must be a number from 0 to below 1")
    if norm is not None and not is_number(norm, above=0):
        raise _refusal("feature_norm must be a number above 0")


def _check_ridge_head(options: Mapping[str, Any]) -> None:
    _only("ridge_head", options, "feature_range", "target_range")
    for name in ("feature_range", "target_range"):
        bound = options.get(name, 1.0)
        if not (is_number(bound, least=_SMALLEST_RANGE) and bound <= 1 / _SMALLEST_RANGE):
            raise _refusal(
                f"{name} must be a number from {_SMALLEST_RANGE:g} to {1 / _SMALLEST_RANGE:g}"
            )


_OPTION_CHECKS: Final[Mapping[str, Callable[[Mapping[str, Any]], None]]] = {
    "logistic": lambda options: _only("logistic", options),
    "mlp": lambda options: _check_widths("mlp", "hidden", options, fewest=0),
    "cnn": lambda options: _check_widths("cnn", "channels", options, fewest=1),
    "linear_head": _check_linear_head,
    "ridge_head": _check_ridge_head,
    "ensemble": lambda options: _only("ensemble", options),
}

PRESETS: Mapping[str, ArchitectureSpec] = {}
PRESETS = MappingProxyType(
    {
        # Koloskova et al. 2025, appendix B: 784-5-10 for MNIST, 20,042 parameters for CIFAR-10.
        "koloskova_mnist": ArchitectureSpec(name="mlp", options={"hidden": [5]}),
        "koloskova_cifar": ArchitectureSpec(name="cnn", options={"channels": [32, 64]}),
    }
)
"""Named architectures of published experiments."""

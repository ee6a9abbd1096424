"""Which network a model is: its architecture, its public parts, and the members of an ensemble.

A spec is data; ``workers/training/networks/architectures.py`` builds the network. The operator's
own factory is called only if the worker's settings allow it. A backbone and a base are public
tensors: their owner asserts that they do not depend on private records, nothing can check it, and
every certificate says so.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

from app.domain.checks import is_number, known_fields
from app.domain.errors import InvalidInputError

MOST_LAYERS: Final = 64
POOLS: Final = ("1x1", "2x2")


@dataclass(frozen=True)
class BackboneUse:
    """How a model uses a backbone.

    Attributes:
        frozen: true: the model is a head on the backbone's fixed features. False: the whole
            network is trained, starting from the backbone's weights.

    Raises:
        InvalidInputError: a field has the wrong type.
    """

    name: str
    frozen: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInputError("architecture: backbone.name must be text")
        if not isinstance(self.frozen, bool):
            raise InvalidInputError("architecture: backbone.frozen must be true or false")

    @classmethod
    def from_json(cls, document: object) -> "BackboneUse":
        """Parse ``to_json`` output or user input, or raise ``InvalidInputError``."""
        fields = known_fields(document, "architecture: backbone", ("name", "frozen"))
        if "name" not in fields:
            raise InvalidInputError("architecture: backbone.name must be text")
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        """Return the use as plain JSON values."""
        return {"name": self.name, "frozen": self.frozen}


@dataclass(frozen=True)
class FeatureLayer:
    """A layer whose output, averaged over positions, is a part of a frozen backbone's features.

    Attributes:
        module: its name in the network's ``named_modules()``.
        pool: ``1x1``: the average over all positions of an image [n, C, H, W] or all tokens
            [n, T, C]; an output [n, C] stays as it is. ``2x2``: the averages over the four quarters
            of an image.
        std: whether the standard deviations over all positions follow, one for each channel.

    Raises:
        InvalidInputError: a field has the wrong type.
    """

    module: str
    pool: str = POOLS[0]
    std: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.module, str) or not self.module:
            raise InvalidInputError("layers: module must be the name of a module")
        if self.pool not in POOLS:
            raise InvalidInputError(f"layers: pool must be one of {', '.join(POOLS)}")
        if not isinstance(self.std, bool):
            raise InvalidInputError("layers: std must be true or false")

    @classmethod
    def all_from_json(cls, document: object) -> "tuple[FeatureLayer, ...]":
        """Parse a list of layers, or raise ``InvalidInputError``."""
        if not isinstance(document, list) or len(document) > MOST_LAYERS:
            raise InvalidInputError(f"layers: must be a list of at most {MOST_LAYERS} layers")
        layers = []
        for layer in document:
            if not isinstance(layer, Mapping) or "module" not in layer:
                raise InvalidInputError("layers: each must be an object with the name of a module")
            layers.append(cls(**known_fields(layer, "layers", ("module", "pool", "std"))))
        if len(set(layers)) < len(layers):
            raise InvalidInputError("layers: one is named twice")
        return tuple(layers)

    def to_json(self) -> dict[str, Any]:
        """Return the layer as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class BackboneDigest:
    """The exact public weights that a model builds on, as named in its certificates.

    Attributes:
        sha256: of the weights' file.
        definition: of what computes with these weights; see ``definition_digest``.
        frozen: as in ``BackboneUse``.
    """

    name: str
    sha256: str
    definition: str
    frozen: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BackboneDigest":
        """Read what ``to_json`` wrote."""
        return cls(**document)


def definition_digest(
    *,
    architecture: Mapping[str, Any],
    layers: Sequence[FeatureLayer],
    input_shape: Sequence[int],
    classes: int,
) -> str:
    """Return the SHA-256 of what computes with a backbone's weights, in hex.

    The same weights make other features in another network, with other options, from other layers.
    """
    document = {
        "architecture": architecture,
        "layers": [layer.to_json() for layer in layers],
        "input_shape": list(input_shape),
        "classes": classes,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class BaseDigest:
    """The exact base of a model, as named in its certificates and in its files.

    Attributes:
        sha256: of the tensors' names, types, shapes and bytes; see ``of``.
        tensors: their names, sorted.
    """

    sha256: str
    tensors: tuple[str, ...]

    @classmethod
    def of(cls, digests: Mapping[str, str]) -> "BaseDigest | None":
        """Return the digest of tensors with such digests each, by name; None if there are none."""
        if not digests:
            return None
        text = json.dumps(dict(digests), sort_keys=True, separators=(",", ":"))
        return cls(hashlib.sha256(text.encode()).hexdigest(), tuple(sorted(digests)))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"sha256": self.sha256, "tensors": list(self.tensors)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` wrote, or raise ``InvalidInputError``."""
        if set(document) != {"sha256", "tensors"}:
            raise InvalidInputError("base: an object with sha256 and tensors")
        return cls(document["sha256"], tuple(document["tensors"]))


NAMES: Final = (
    *("logistic", "mlp", "cnn", "linear_head", "ridge_head", "boosted_trees", "ensemble"),
    "custom",
)
ENSEMBLE: Final = "ensemble"
_FIELDS: Final = frozenset({"name", "options", "factory", "backbone", "members", "of"})
_NOT_MEMBERS: Final = ("linear_head", "ridge_head", "ensemble")
MOST_MEMBERS: Final = 256
_MOST_LAYERS: Final = 64
_MOST_OF_TREES: Final = {
    "trees": (1, 2000),
    "leaves": (2, 255),
    "depth": (1, 32),
    "smallest_leaf": (1, 10**6),
}
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
        name: ``logistic``, ``mlp``, ``cnn``, ``linear_head``, ``ridge_head``, ``boosted_trees``,
            ``ensemble`` or ``custom``.
        options: ``mlp``: ``hidden``, the widths of its hidden layers. ``cnn``: ``channels``, one
            convolution and halving per entry. ``linear_head``: ``bias``, the value of the constant
            feature, at least 0 and below 1 (default 0.1), and ``feature_norm``, a public bound that
            divides the features; without it each record is scaled to the same norm. ``ridge_head``:
            ``feature_range``, a public bound to which features are clipped, and of a regression
            ``target_range``, a public bound to which targets are clipped, after the task's offset
            and scale. ``boosted_trees``: ``trees`` for each output (default 100), ``leaves`` of a
            tree at most (31), ``depth`` at most (10), records in the ``smallest_leaf`` (20) and
            ``shrinkage`` of each tree (0.1). ``custom``: the factory's keyword arguments.
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


def _check_boosted_trees(options: Mapping[str, Any]) -> None:
    _only("boosted_trees", options, *_MOST_OF_TREES, "shrinkage")
    for name, (least, most) in _MOST_OF_TREES.items():
        number = options.get(name, least)
        if type(number) is not int or not least <= number <= most:
            raise _refusal(f"{name} must be a whole number from {least} to {most}")
    shrinkage = options.get("shrinkage", 1.0)
    if not (is_number(shrinkage, above=0) and shrinkage <= 1):
        raise _refusal("shrinkage must be a number above 0, and at most 1")


_OPTION_CHECKS: Final[Mapping[str, Callable[[Mapping[str, Any]], None]]] = {
    "logistic": lambda options: _only("logistic", options),
    "mlp": lambda options: _check_widths("mlp", "hidden", options, fewest=0),
    "cnn": lambda options: _check_widths("cnn", "channels", options, fewest=1),
    "linear_head": _check_linear_head,
    "ridge_head": _check_ridge_head,
    "boosted_trees": _check_boosted_trees,
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


_NAME: Final = re.compile(r"members\.(0|[1-9][0-9]{0,3})\.(.+)", re.DOTALL)


@dataclass(frozen=True)
class Member:
    """One member of a published ensemble: with its first two fields active, with the third out.

    Attributes:
        sha256: of its tensors.
        trained_in: the version whose run trained it.
        out_since: the first version without it.
    """

    sha256: str | None = None
    trained_in: int | None = None
    out_since: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether it is part of what is released."""
        return self.out_since is None

    @property
    def since(self) -> int:
        """The version since which it is as it is."""
        return self.trained_in or self.out_since or 0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; what it has not is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Restore it."""
        return cls(**document)


def tensor_name(member: int, name: str) -> str:
    """Return what an ensemble calls a member's tensor."""
    return f"members.{member}.{name}"


def own_name(name: str) -> str:
    """Return what a member itself calls a tensor of an ensemble; other names stay."""
    found = _NAME.fullmatch(name)
    return name if found is None else found[2]


def by_member(names: Iterable[str]) -> dict[int, dict[str, str]] | None:
    """Return each member's names in the ensemble by its own; None if one is not a member's."""
    found: dict[int, dict[str, str]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        found.setdefault(int(match[1]), {})[match[2]] = name
    return found


_OWN: Final = "the operator's own network"


def network_in_words(architecture: Mapping[str, Any]) -> str:
    """Return what a model's architecture is, from its JSON."""
    member = architecture.get("of")
    if member is None:
        return _kind(architecture)
    return f"{_counted(architecture['members'])} of {_kind(member)}"


def members_in_words(members: Sequence[Member], *, version: int) -> str:
    """Return how many members a version trained anew, when others were trained, and who is out."""
    anew = sum(member.trained_in == version for member in members)
    out = [place for place, member in enumerate(members) if not member.is_active]
    if anew == len(members):
        return f"{_counted(anew)}, all trained in this version"
    older = [
        f"{len(places)} in version {number}"
        for number, places in members_by_version(members).items()
        if number != version
    ]
    if out:
        older.append(f"{len(out)} out")
    return f"{_counted(len(members))}, {anew} trained anew in this version, {', '.join(older)}"


def members_by_version(members: Iterable[Member], *, out: bool = False) -> dict[int, list[int]]:
    """Return which members each version trained, the newest version first; counted from 0.

    ``out`` asks instead for those that are out, by the first version without them.
    """
    found: dict[int, list[int]] = {}
    for place, member in enumerate(members):
        if member.is_active != out:
            found.setdefault(member.since, []).append(place)
    return dict(sorted(found.items(), reverse=True))


def out_of(members: Iterable[Member]) -> dict[int, int]:
    """Return which members are out, each with the first version without it."""
    return {place: each.since for place, each in enumerate(members) if not each.is_active}


def fewest_to_train(
    members: Sequence[Member], concerned: Collection[int], *, fewest: int
) -> frozenset[int]:
    """Return which members are trained so that ``fewest`` are active without those ``concerned``.

    None where enough others are. Which ones follows from the requests alone.
    """
    left = {place for place, each in enumerate(members) if each.is_active} - set(concerned)
    holes = sorted(set(range(len(members))) - left)
    return frozenset(holes[: max(0, fewest - len(left))])


def _kind(architecture: Mapping[str, Any]) -> str:
    return _OWN if architecture["name"] == "custom" else str(architecture["name"])


def _counted(members: int) -> str:
    return f"{members} member{'' if members == 1 else 's'}"

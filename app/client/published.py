"""Published models as files: weights, and the certificate beside them.

A head without a backbone is computed here, in NumPy, or an ensemble of boosted trees;
``workers.training.published`` has every network.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from app.domain.architectures import by_member
from app.domain.description import ModelDescription
from app.domain.errors import ConfigurationError, InvalidInputError, VerificationError
from app.domain.extras import TABLES, loaded
from app.domain.heads import boosted_trees, linear_head, ridge_head
from app.domain.release import certificate_filename
from app.domain.tasks.built_in import ClassificationSpec, MultiLabelSpec, RegressionSpec
from app.domain.tasks.custom import CustomSpec
from app.domain.tasks.spec import TaskSpec
from app.evidence.certificates import verification
from app.evidence.certificates.weights_file import StoredTensor, WeightsFile, opened
from app.runtime.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

_Numpy = Any  # the module
_DTYPES: Final[Mapping[str, str]] = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
# As in ``workers.training.networks.heads``.
_NORM_MARGIN: Final = 1 - 2.0**-30
_SMALLEST_NORM: Final = 1e-30


@dataclass(frozen=True)
class PublishedFile:
    """A published model's file, as it was read once, and what it says of its use.

    ``predicate`` is that of its certificate, which holds; None if it was not checked.
    """

    content: bytes = field(repr=False)
    description: ModelDescription
    predicate: Mapping[str, Any] | None

    @property
    def is_plain_head(self) -> bool:
        """Whether ``head_outputs`` computes it."""
        architecture, task = self.description.architecture, self.description.task
        is_head = architecture.member.name in _HEADS
        return is_head and not architecture.on_features and not isinstance(task, CustomSpec)


def verify(
    weights: str | Path,
    *,
    certificate: str | Path | None = None,
    trusted: str | Path | bytes | None = None,
) -> dict[str, Any]:
    """Check the certificate of a downloaded file offline, and return its predicate.

    Args:
        weights: the safetensors file.
        certificate: its bundle; by default the one beside it, as ``expunge download`` names it.
        trusted: the operator's ``trusted-keys.json``, or its content; by default the one of
            ``expunge init`` here.

    Raises:
        VerificationError: with the first step that failed.
        ConfigurationError: the certificate or a trusted key is missing.
    """
    path = Path(weights)
    return _verified(path, path.read_bytes(), certificate, trusted)


def read_published(
    weights: str | Path,
    *,
    certificate: str | Path | None = None,
    trusted: str | Path | bytes | None = None,
    check: bool = True,
) -> PublishedFile:
    """Read a published model's file once, and check that very content.

    The first three are as for ``verify``; ``check`` says whether the certificate is checked.

    Raises:
        VerificationError: the certificate does not hold, or the file is not in safetensors format.
        ConfigurationError: the certificate or a trusted key is missing.
        InvalidInputError: the file does not say how it is used.
    """
    path = Path(weights)
    content = path.read_bytes()
    predicate = _verified(path, content, certificate, trusted) if check else None
    with opened(content) as file:
        file.tensors()
        description = file.description()
    if description is None:
        raise InvalidInputError(f"{path.name} does not say how it is used: it was not published")
    return PublishedFile(content, description, predicate)


def head_outputs(published: PublishedFile, features: "npt.NDArray[Any]") -> "Floats":
    """Return a plain head's outputs, float64 [n, outputs], for raw features [n, …].

    Of regression they are numbers in the targets' units, otherwise logits, or a ridge head's
    scores; of an ensemble what its members say on average. The formula is in
    docs/how-to/use-a-model.md. ``InvalidInputError`` if the file's tensors are not a head's.
    """
    np = loaded("numpy", extra=TABLES)
    said = published.description
    schema, task, architecture = said.schema, said.task, said.architecture.member
    with opened(published.content) as file:
        tensors = {name: _array(file, tensor) for name, tensor in file.tensors().items()}
    raw = np.asarray(features).reshape(len(features), -1).astype(np.float32)
    seen = ((raw - np.float32(schema.offset)) * np.float32(schema.scale)).astype(np.float64)
    head, single = _HEADS[architecture.name], replace(said, architecture=architecture)
    alone = said.architecture.of is None
    named = {0: {name: name for name in tensors}} if alone else by_member(tensors) or {}
    try:
        members = [
            head(np, seen, {own: tensors[name] for own, name in each.items()}, single)
            for each in named.values()
        ]
        outputs = np.stack(members)
    except (KeyError, ValueError, IndexError) as error:
        raise InvalidInputError("the file's tensors are not those of its head") from error
    if outputs.shape[2] < task.outputs:  # two classes share a row
        outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=2)
    said_by_all: Floats = outputs[0] if alone else _average(np, outputs, task)
    return task.in_units(said_by_all) if isinstance(task, RegressionSpec) else said_by_all


def _average(np: _Numpy, outputs: "Floats", task: TaskSpec) -> "Floats":
    """Return what members [members, n, outputs] say on average, as an ensemble's network does."""
    if isinstance(task, ClassificationSpec):
        outputs = outputs - np.logaddexp.reduce(outputs, axis=2, keepdims=True)
        return np.logaddexp.reduce(outputs, axis=0) - math.log(len(outputs))  # type: ignore[no-any-return]
    if isinstance(task, MultiLabelSpec):
        no, yes = (-np.logaddexp(0, sign * outputs) for sign in (1, -1))
        return np.logaddexp.reduce(yes, axis=0) - np.logaddexp.reduce(no, axis=0)  # type: ignore[no-any-return]
    return outputs.mean(axis=0)  # type: ignore[no-any-return]


def _ridge(
    np: _Numpy, seen: "Floats", tensors: "Mapping[str, Floats]", said: ModelDescription
) -> "Floats":
    most = said.architecture.options["feature_range"]
    bounded = np.clip(np.nan_to_num(seen), -most, most)
    return bounded @ tensors["weight"].T + tensors["bias"]  # type: ignore[no-any-return]


def _linear(
    np: _Numpy, seen: "Floats", tensors: "Mapping[str, Floats]", said: ModelDescription
) -> "Floats":
    options = said.architecture.options
    seen = np.nan_to_num(seen, nan=0.0, posinf=0.0, neginf=0.0)
    largest = np.maximum(np.abs(seen).max(axis=1, keepdims=True), _SMALLEST_NORM)
    norms = np.linalg.norm(seen / largest, axis=1, keepdims=True) * largest
    norms = np.maximum(norms, options.get("feature_norm") or _SMALLEST_NORM)
    bias = options.get("bias", linear_head.DEFAULT_BIAS)
    unit = seen / norms * (math.sqrt(1 - bias * bias) * _NORM_MARGIN)
    if bias > 0:
        constant = np.full((len(unit), 1), bias * _NORM_MARGIN)
        unit = np.concatenate([unit, constant], axis=1)
    return unit @ tensors["weight"].T  # type: ignore[no-any-return]


def _trees(
    np: _Numpy, seen: "Floats", tensors: "Mapping[str, Floats]", said: ModelDescription
) -> "Floats":
    seen = np.nan_to_num(seen, nan=0.0, posinf=0.0, neginf=0.0)
    categories = boosted_trees.categories_of(said.architecture, said.task)
    features = [np.arange(start, start + width) for start, width in categories]
    places = [seen[:, each].argmax(axis=1, keepdims=True) for each in features]
    seen = np.concatenate(
        [*places, np.delete(seen, np.concatenate([[], *features]).astype(int), axis=1)], axis=1
    )
    rows, trees, nodes = tensors["column"].shape
    inner = (tensors[name].flat for name in ("column", "left"))
    boosted_trees.require_nodes(*inner, nodes=nodes, seen=seen.shape[1])
    flat = {name: numbers.reshape(-1) for name, numbers in tensors.items()}
    root = np.arange(rows * trees) * nodes
    place = np.broadcast_to(root, (len(seen), rows * trees))
    for _ in range(boosted_trees.options_of(said.architecture.options)["depth"]):
        left = flat["left"][place].astype(np.int64)
        column = flat["column"][place].astype(np.int64)
        value = np.take_along_axis(seen, column, axis=1)
        beyond = value > flat["threshold"][place]
        if categories:
            is_category = column < len(categories)
            code = np.where(is_category, value, 0).astype(np.int64)
            word, bit = np.divmod(code, boosted_trees.WORD_BITS)
            word = flat["categories"][place * tensors["categories"].shape[-1] + word]
            beyond = np.where(is_category, word.astype(np.int64) >> bit & 1 == 0, beyond)
        place = np.where(left > 0, root + left + beyond, place)
    values = flat["value"][place].reshape(len(seen), rows, trees)
    return values.sum(axis=2) + tensors["baseline"]  # type: ignore[no-any-return]


_HEADS: Final = {
    linear_head.NAME: _linear,
    ridge_head.NAME: _ridge,
    boosted_trees.NAME: _trees,
}


def _array(file: WeightsFile, tensor: StoredTensor) -> Any:  # noqa: ANN401 - an array
    np = loaded("numpy", extra=TABLES)
    if tensor.dtype not in _DTYPES:
        raise InvalidInputError(f"a tensor of type {tensor.dtype} is not read without PyTorch")
    numbers = np.frombuffer(file.content(tensor), dtype=_DTYPES[tensor.dtype])
    return numbers.reshape(tensor.shape)


def _verified(
    path: Path,
    content: bytes,
    certificate: str | Path | None,
    trusted: str | Path | bytes | None,
) -> dict[str, Any]:
    bundle = _certificate_of(path, content) if certificate is None else Path(certificate)
    if not bundle.is_file():
        raise ConfigurationError(
            f"{bundle} is missing: the certificate of {path.name} cannot be checked"
        )
    keys = trusted if isinstance(trusted, bytes) else _keys(trusted)
    return verification.verify(bundle=bundle.read_bytes(), weights=content, trusted=keys)


def _certificate_of(path: Path, content: bytes) -> Path:
    """Return where a download has put the certificate: beside the file, whatever that is called."""
    beside = path.with_name(path.stem + ".certificate.json")
    if beside.is_file():
        return beside
    with opened(content) as file:
        description = file.description()
    if description is None:
        return beside
    named = certificate_filename(description.model, description.version)
    if Path(named).name != named:
        raise VerificationError("weights", "its description is malformed")
    return path.with_name(named)


def _keys(trusted: str | Path | None) -> bytes:
    path = Settings().trusted_keys_file if trusted is None else Path(trusted)
    if not path.is_file():
        raise ConfigurationError(
            "the operator's trusted-keys.json is needed to check the certificate; get it through a "
            "channel that you trust"
        )
    return path.read_bytes()

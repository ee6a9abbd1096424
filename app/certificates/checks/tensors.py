"""Checks a certificate's mechanism against the weight file's tensors.

The dimension, the number of classes and the dtype come from the file. Constants that follow from
them are compared with what the service enforces.
"""

from collections.abc import Mapping
from typing import Final

from app.accounting.histories.history import Release as ReleaseEvent
from app.certificates.schema import Predicate, Release
from app.certificates.weights_file import StoredTensor, WeightsFile
from app.domain import linear_head
from app.domain.errors import VerificationError
from app.planning.mechanisms.mechanism import Mechanism
from app.planning.mechanisms.tracked import Tracked

BACKBONE: Final = "backbone."
HEAD: Final = "weight"
_FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16"})


def check_tensors(predicate: Predicate, mechanism: Mechanism | None, weights: WeightsFile) -> str:
    """Check what a certificate says of the weights; return it in words.

    Raises:
        VerificationError: the file has other tensors, or a constant contradicts them.
    """
    tensors = weights.tensors()
    frozen = predicate.backbone is not None and predicate.backbone.frozen
    _require(
        frozen == any(name.startswith(BACKBONE) for name in tensors),
        "the file and the certificate disagree on a frozen backbone",
    )
    if not isinstance(predicate, Release) or mechanism is None:
        return f"{len(tensors)} tensors"
    trained = _trained(predicate, tensors)
    dimension = sum(tensor.size for tensor in trained.values())
    if isinstance(mechanism, Tracked):
        _check_head(predicate, mechanism, tensors, weights)
    _require(mechanism.counted() in (None, dimension), "its dimension is another")
    return f"{dimension} trained numbers in {len(trained)} of {len(tensors)} tensors"


def _trained(predicate: Release, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    names = predicate.mechanism.tensors
    _require(names == sorted(set(names)), "its tensor names are not sorted and unique")
    missing = [name for name in names if name not in tensors]
    _require(not missing, "it names a tensor that the file does not hold")
    trained = {name: tensors[name] for name in names}
    _require(all(tensor.dtype in _FLOATS for tensor in trained.values()), "a tensor is not float")
    _require(not any(name.startswith(BACKBONE) for name in names), "it trained a frozen backbone")
    frame = predicate.mechanism.frame
    _require(frame is None or set(frame.scale) == set(names), "its frame has other tensors")
    return trained


def _check_head(
    predicate: Release,
    mechanism: Tracked,
    tensors: Mapping[str, StoredTensor],
    weights: WeightsFile,
) -> None:
    """Check a linear head, the only network whose constants the service knows."""
    others = [name for name in tensors if name != HEAD and not name.startswith(BACKBONE)]
    _require(predicate.mechanism.tensors == [HEAD] and not others, "not a linear head")
    head = tensors[HEAD]
    _require(head.dtype == "F64" and len(head.shape) == 2, "not a linear head in float64")
    _require(head.shape[0] != 2, "a linear head of two classes has one row")
    classes = head.shape[0] if head.shape[0] > 1 else 2
    _check_recipe(mechanism, classes)
    noise = predicate.mechanism.noise
    if noise is not None and noise.grid is not None and _ends_on_grid(mechanism):
        _require(weights.is_on_grid(head, noise.grid), "the weights are not on the stated grid")


def _check_recipe(mechanism: Tracked, classes: int) -> None:
    recipe = mechanism.history.recipe
    constants = (linear_head.smoothness(classes), linear_head.lipschitz(classes))
    _require(
        (recipe.smoothness, recipe.lipschitz) == constants,
        f"smoothness or lipschitz are not those of {classes} classes",
    )
    _require(not mechanism.full_batch or recipe.batches == 1, "not full-batch")
    rate = mechanism.own_learning_rate(
        weight_decay=recipe.weight_decay, smoothness=recipe.smoothness
    )
    _require(rate in (None, recipe.learning_rate), f"learning_rate is not that of {mechanism.name}")


def _ends_on_grid(mechanism: Tracked) -> bool:
    """Return whether the weights are unchanged since they were last rounded to the grid."""
    if mechanism.history.recipe.radius is not None:  # projection follows the noise
        return False
    run = mechanism.history.last_run
    end = run[-1]
    if isinstance(end, ReleaseEvent) and end.noise_std == 0 and len(run) > 1:
        end = run[-2]
    return end.noise_std > 0


def _require(condition: bool, reason: str) -> None:  # noqa: FBT001
    if not condition:
        raise VerificationError("weights", reason)

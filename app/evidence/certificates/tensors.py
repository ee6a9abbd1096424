"""Checks a certificate's mechanism against the weight file's tensors.

The dimension, the number of classes and the dtype come from the file. Constants that follow from
them are compared with what the service enforces.
"""

import math
from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any, Final

from app.accounting.histories.history import History
from app.accounting.histories.history import Release as ReleaseEvent
from app.accounting.noisy_gd_nonconvex import capped_smoothness
from app.domain.architectures import ENSEMBLE, by_member, out_of, own_name
from app.domain.description import ModelDescription
from app.domain.errors import InvalidInputError, VerificationError
from app.domain.heads import boosted_trees, linear_head, ridge_head
from app.domain.tasks.built_in import classification
from app.domain.tasks.spec import TaskSpec
from app.evidence.certificates.schema import Predicate, Release
from app.evidence.certificates.weights_file import BACKBONE, StoredTensor, WeightsFile
from app.planning.mechanisms.boosting import Boosting
from app.planning.mechanisms.mechanism import Mechanism, Needs
from app.planning.mechanisms.noisy_gd_nonconvex import NoisyGdNonconvex
from app.planning.mechanisms.tracked import Tracked

HEAD: Final = "weight"
BIAS: Final = "bias"
TREES: Final = ("baseline", "column", "left", "threshold", "value")
_SETS: Final = "categories"
_RIDGE_OPTIONS: Final = {
    "feature_range": None,
    "target_range": None,
}
_PROJECTED: Final = 1 - 2.0**-21
"""Of a radius: weights that were projected to the ball have at least this norm."""
_FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16"})


def check_tensors(predicate: Predicate, mechanism: Mechanism | None, weights: WeightsFile) -> str:
    """Check what a certificate says of the weights; return it in words."""
    description = weights.description()
    finding = _check_against(predicate, mechanism, weights, description)
    if description is None:
        return f"{finding}; NOT COMPARED: the file does not say which model it is"
    return finding


def _check_against(
    predicate: Predicate,
    mechanism: Mechanism | None,
    weights: WeightsFile,
    description: ModelDescription | None,
) -> str:
    tensors = weights.tensors()
    if description is not None:
        _check_description(description, predicate)
    said = None if description is None else description.base
    own = None if predicate.base is None else predicate.base.digest()
    _require(said == own, "the file and the certificate disagree on the network's base")
    if own is not None:
        names = {*tensors, *map(own_name, tensors)}
        _require(names.isdisjoint(own.tensors), "the file holds a tensor of the base")
    frozen = predicate.backbone is not None and predicate.backbone.frozen
    _require(
        frozen == any(name.startswith(BACKBONE) for name in tensors),
        "the file and the certificate disagree on a frozen backbone",
    )
    if not isinstance(predicate, Release) or mechanism is None:
        return f"{len(tensors)} tensors"
    trained = _trained(predicate, tensors)
    dimension = sum(tensor.size for tensor in trained.values())
    if mechanism.needs is Needs.LINEAR_HEAD:
        task = _check_linear_head(predicate, tensors, description)
        if isinstance(mechanism, Tracked):
            _check_tracked(predicate, mechanism, weights, task)
    if mechanism.needs is Needs.RIDGE_HEAD:
        _require(predicate.mechanism.tensors == _own(tensors) == [BIAS, HEAD], "not a ridge head")
        weight, bias = tensors[HEAD], tensors[BIAS]
        _require(
            weight.dtype == bias.dtype == "F64"
            and len(weight.shape) == 2
            and tuple(bias.shape) == (weight.shape[0],),
            "not a ridge head in float64",
        )
        _check_sums(mechanism, tensors[BIAS], description)
    if isinstance(mechanism, Boosting):
        found = {name: tensors[name] for name in _own(tensors)}
        _require(predicate.mechanism.tensors == sorted(found), "not boosted trees")
        _check_trees(mechanism.parameters(), found, weights, description)
    if isinstance(mechanism, NoisyGdNonconvex) and description is not None:
        _check_curvature(mechanism, description)
    if mechanism.needs is Needs.ENSEMBLE:
        _check_ensemble(predicate, weights, trained, description)
    _require(mechanism.counted() in (None, dimension), "its dimension is another")
    return f"{dimension} trained numbers in {len(trained)} of {len(tensors)} tensors"


def _check_ensemble(
    predicate: Release,
    weights: WeightsFile,
    trained: Mapping[str, StoredTensor],
    description: ModelDescription | None,
) -> None:
    """Check that the file's members are the stated ones, all of one kind."""
    members = [each.member() for each in predicate.members or ()]
    stated = {place: each.sha256 for place, each in enumerate(members) if each.is_active}
    _require(weights.digests_of_members() == stated, "its members are not the stated ones")
    tensors = weights.tensors()
    kinds = {
        tuple(
            (own, tensors[name].dtype, tuple(tensors[name].shape), name in trained)
            for own, name in sorted(names.items())
        )
        for names in (by_member(_own(tensors)) or {}).values()
    }
    _require(bool(trained) and len(kinds) == 1, "its members are not of one kind")
    _require(
        description is not None or len(stated) == len(members),
        "the file does not say which of its members are out",
    )
    if description is not None:
        _require(
            description.architecture.name == ENSEMBLE
            and description.architecture.members == len(members)
            and description.out == out_of(members),
            "the file says that it is another ensemble",
        )
        member = description.architecture.member
        if member.name == boosted_trees.NAME:
            _require(len(trained) == len(_own(tensors)), "not boosted trees")
            single = replace(description, architecture=member)
            for names in (by_member(trained) or {}).values():
                own = {each: trained[name] for each, name in names.items()}
                _check_trees(boosted_trees.options_of(member.options), own, weights, single)


def _check_description(description: ModelDescription, predicate: Predicate) -> None:
    said = (description.model, description.version)
    _require(
        said == (predicate.model.name, predicate.model.version),
        "the file says that it is another model or version",
    )
    said_of, own = description.backbone, predicate.backbone
    same = (said_of is None) == (own is None)
    if said_of is not None and own is not None:
        definition = said_of.definition(input_shape=description.schema.shape)
        stated = (said_of.name, said_of.sha256, definition, said_of.frozen)
        same = stated == (own.name, own.sha256, own.definition, own.frozen)
    _require(same, "the file says that it builds on another backbone")


def _check_sums(
    mechanism: Mechanism, bias: StoredTensor, description: ModelDescription | None
) -> None:
    """Compare a ridge head's parameters and outputs with what its file says of it."""
    if description is None:
        return
    options = description.architecture.options
    stated = mechanism.parameters()
    _require(
        all(
            stated.get(name, default) == options.get(name, default)
            for name, default in _RIDGE_OPTIONS.items()
        ),
        "the file says that its head was computed otherwise",
    )
    try:
        ridge_head.require_task(description.architecture, description.task)
    except InvalidInputError as error:
        raise VerificationError("weights", f"no sums determine such a head: {error}") from error
    task = description.task
    _require(bias.size == task.outputs, f"a ridge head for {task.name} has {task.outputs} rows")


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


def _own(tensors: Mapping[str, StoredTensor]) -> list[str]:
    """Return the names of the tensors that are not a backbone's, sorted."""
    return sorted(name for name in tensors if not name.startswith(BACKBONE))


def _check_linear_head(
    predicate: Release, tensors: Mapping[str, StoredTensor], description: ModelDescription | None
) -> TaskSpec:
    """Check a linear head, the only network whose constants the service knows; return its task.

    A file that does not say what it learned counts as a classifier.
    """
    _require(predicate.mechanism.tensors == _own(tensors) == [HEAD], "not a linear head")
    head = tensors[HEAD]
    _require(head.dtype == "F64" and len(head.shape) == 2, "not a linear head in float64")
    rows = head.shape[0]
    task: TaskSpec = classification(max(2, rows))
    if description is not None:
        _require(description.architecture.name == linear_head.NAME, "not a linear head")
        task = description.task
    _require(task.bounds is not None, f"no linear head learns its task, {task.name}")
    _require(rows == task.rows, f"a linear head for {task.name} has {task.rows} rows")
    return task


def _check_trees(
    stated: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
    weights: WeightsFile,
    description: ModelDescription | None,
) -> None:
    """Check that every number of a model, or of a member, belongs to trees of stated options."""
    sets = tensors.get(_SETS)
    _require({*tensors, _SETS} == {*TREES, _SETS}, "not boosted trees")
    rows, words = tensors["baseline"].size, 0 if sets is None else sets.shape[-1]
    nodes = [rows, stated["trees"], 2 * stated["leaves"] - 1]
    shapes = {"baseline": [rows], _SETS: [*nodes, words]}
    for name, tensor in tensors.items():
        shape = shapes.get(name, nodes)
        _require(
            tensor.dtype == "F64" and list(tensor.shape) == shape,
            "not boosted trees of the stated number and size, in float64",
        )
    if description is not None:
        _check_described_trees(stated, rows, words, description)
    columns, left = (weights.numbers(tensors[name]) for name in ("column", "left"))
    try:
        boosted_trees.require_nodes(columns, left, nodes=nodes[-1], seen=_seen(description))
    except InvalidInputError as error:
        raise VerificationError("weights", str(error)) from error


def _check_described_trees(
    stated: Mapping[str, Any], rows: int, words: int, description: ModelDescription
) -> None:
    stopping = {name: stated[name] for name in Boosting.optional & stated.keys()}
    _require(
        description.architecture.name == boosted_trees.NAME
        and {**boosted_trees.options_of(description.architecture.options), **stopping} == stated,
        "the file says that its trees were grown otherwise",
    )
    task = description.task
    try:
        boosted_trees.require_task(task)
    except InvalidInputError as error:
        raise VerificationError("weights", f"no trees learn its task: {error}") from error
    _require(rows == task.rows, f"boosted trees for {task.name} have {task.rows} rows")
    categories = boosted_trees.categories_of(description.architecture, task)
    _require(words == boosted_trees.words_of(categories), "its sets are not those of its task")


def _seen(description: ModelDescription | None) -> float:
    """Return how many columns a file's trees see; infinity where the file does not tell."""
    if description is None or description.architecture.on_features:
        return math.inf
    categories = boosted_trees.categories_of(description.architecture, description.task)
    return math.prod(description.schema.shape) - sum(width - 1 for _, width in categories)


def _check_tracked(
    predicate: Release, mechanism: Tracked, weights: WeightsFile, task: TaskSpec
) -> None:
    """Check the constants of a linear head whose history is tracked, and its noise's grid."""
    history, bounds = mechanism.history, task.bounds
    recipe = history.recipe
    _require(
        bounds is not None and (recipe.smoothness, recipe.lipschitz) == astuple(bounds)[::-1],
        f"smoothness or lipschitz are not those of its task, {task.name}",
    )
    _require(not mechanism.full_batch or recipe.batches == 1, "not full-batch")
    rate = mechanism.own_learning_rate(
        weight_decay=recipe.weight_decay, smoothness=recipe.smoothness
    )
    _require(rate in (None, recipe.learning_rate), f"learning_rate is not that of {mechanism.name}")
    noise, head = predicate.mechanism.noise, weights.tensors()[HEAD]
    norm = 0.0 if recipe.radius is None else weights.norm(head)
    if noise is not None and noise.grid is not None and _ends_on_grid(history, norm):
        _require(weights.is_on_grid(head, noise.grid), "the weights are not on the stated grid")
    _require(
        norm <= history.furthest, "the weights are outside of the ball to which they were projected"
    )


def _check_curvature(mechanism: NoisyGdNonconvex, description: ModelDescription) -> None:
    """Check a stated smoothness as far as the file's task decides it: for heads, and for kinks."""
    task = description.task
    _require(task.rough is None, f"no constant bounds the curvature of its loss: {task.rough}")
    if description.architecture.name != linear_head.NAME:
        return
    bounds = task.bounds
    _require(
        bounds is not None and mechanism.smoothness >= capped_smoothness(bounds.smoothness),
        f"smoothness is below that of a linear head's task, {task.name}",
    )


def _ends_on_grid(history: History, norm: float) -> bool:
    """Return whether weights of this norm are unchanged since they were last rounded to the grid.

    Projection follows a step's noise, not a release's, and moves only weights that were outside.
    """
    run, radius = history.last_run, history.recipe.radius
    end = run[-1]
    if isinstance(end, ReleaseEvent) and end.noise_std == 0 and len(run) > 1:
        end = run[-2]
    if radius is not None and not isinstance(end, ReleaseEvent) and norm >= radius * _PROJECTED:
        return False
    return end.noise_std > 0


def _require(condition: bool, reason: str) -> None:  # noqa: FBT001
    if not condition:
        raise VerificationError("weights", reason)

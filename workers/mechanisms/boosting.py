"""The rule of ``app.planning.mechanisms.boosting``: scikit-learn grows the trees."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from app.domain.errors import RunFailedError
from app.domain.heads.boosted_trees import WORD_BITS, words_of
from app.domain.tasks.built_in import ClassificationSpec, RegressionSpec
from app.domain.tasks.spec import TaskSpec
from app.planning.mechanisms.boosting import Boosting
from workers.data.loading import RunData
from workers.training.exact.arithmetic import repeatable
from workers.training.examples import Records
from workers.training.networks.network import Network
from workers.training.networks.trees import BoostedTrees
from workers.training.tasks.task import INPUTS, TARGET

_AT_ONCE: Final = 2**16
_CPU: Final = torch.device("cpu")
_UNSEEN: Final = 0.5
"""Records of a class that has none, so that no probability is 0."""

Floats = NDArray[np.float64]

# A first fit counts processors and reads files, which no run may do while weights are sealed; with
# more than one thread, processes forked later would wait for threads that they do not have.
with repeatable(), threadpool_limits(limits=1, user_api="openmp"):
    for _kind in (HistGradientBoostingClassifier, HistGradientBoostingRegressor):
        _kind(max_iter=1, categorical_features=[0]).fit(np.zeros((2, 2)), [0, 1])


def solve(mechanism: Boosting, network: Network, data: RunData, task: TaskSpec) -> None:
    """Grow trees from the retained records in the order of their arrival.

    With ``patience``, retained held-out records tell how many are kept.

    Raises:
        RunFailedError: the network has no trees, or no record is left to learn from.
    """
    told = None if mechanism.patience is None else data.held_out
    if not grow(mechanism, network, data.retain, task, told=told):
        raise RunFailedError("no record is left to learn from")


def grow(
    mechanism: Boosting,
    network: Network,
    records: Records,
    task: TaskSpec,
    *,
    told: Records | None = None,
) -> bool:
    """Grow trees from records in their order; without one that has a target, return False.

    Those that are ``told`` decide how many trees are kept. ``RunFailedError`` for another network.
    """
    trees = network.module
    if not isinstance(trees, BoostedTrees):
        raise RunFailedError("boosting needs boosted_trees")
    found = _read(trees, network, records)
    if found is None:
        return False
    others = None if told is None else _read(trees, network, told)
    (seen, wanted), (known, expected) = found, others or found
    grower = _Grower(mechanism, trees, seen, None if others is None else known)
    with repeatable(), threadpool_limits(limits=1, user_api="openmp"), torch.no_grad():
        for tensor in trees.parameters():
            tensor.zero_()
        if isinstance(task, ClassificationSpec):
            _grow_classes(grower, wanted, expected)
        else:
            columns = (each.reshape(len(each), -1).T for each in (wanted, expected))
            for row, (column, other) in enumerate(zip(*columns, strict=True)):
                if isinstance(task, RegressionSpec):
                    grower.grow(HistGradientBoostingRegressor, column, other, [row])
                else:
                    _grow_label(grower, column > _UNSEEN, other > _UNSEEN, row)
    return True


def _read(
    trees: BoostedTrees, network: Network, records: Records
) -> tuple[Floats, NDArray[Any]] | None:
    """Return what trees see of records with a target, and the targets; None if none has one."""
    features, targets = [], []
    for batch in map(network.task.measured, records.in_order(_AT_ONCE, device=_CPU)):
        features.append(trees.seen(batch[INPUTS]).numpy())
        targets.append(batch[TARGET].numpy())
    if not sum(map(len, targets)):
        return None
    return np.concatenate(features), np.concatenate(targets)


@dataclass(frozen=True, eq=False)
class _Grower:
    """Grows trees; ``others`` is what they see of records that tell how many are kept, if any."""

    mechanism: Boosting
    trees: BoostedTrees
    seen: Floats
    others: Floats | None

    def grow(
        self,
        kind: Any,  # noqa: ANN401 - scikit-learn has no types
        target: NDArray[Any],
        known: NDArray[Any],
        rows: list[int],
        which: NDArray[np.bool_] | None = None,
    ) -> None:
        """Put trees for a target into their rows; ``known`` is that of the others.

        ``which`` of the others are looked at, by default all.
        """
        mechanism, options, fitted = self.mechanism, dict[str, Any](), dict[str, Any]()
        if self.others is not None and (which is None or which.any()):
            chosen = slice(None) if which is None else which
            options = {"early_stopping": True, "n_iter_no_change": mechanism.patience, "tol": 0.0}
            fitted = {"X_val": self.others[chosen], "y_val": known[chosen]}
        grown = kind(
            max_iter=mechanism.trees,
            max_leaf_nodes=mechanism.leaves,
            max_depth=mechanism.depth,
            min_samples_leaf=mechanism.smallest_leaf,
            learning_rate=mechanism.shrinkage,
            categorical_features=[*range(len(self.trees.widths))] or None,
            random_state=0,  # which of more than 200,000 records the bins are made of
            **{"early_stopping": False, **options},
        ).fit(self.seen, target, **fitted)
        kept = int(np.argmax(grown.validation_score_)) if options else mechanism.trees
        _put(self.trees, grown, rows, kept=kept)


def _grow_classes(grower: _Grower, classes: NDArray[Any], known: NDArray[Any]) -> None:
    """Grow the trees of logits; of two classes only the second has any."""
    trees = grower.trees
    if len(trees.baseline) == 1:
        _grow_label(grower, classes == 1, known == 1, 0)
        return
    trees.baseline.fill_(math.log(_UNSEEN / len(classes)))
    found = np.unique(classes)
    if len(found) == 1:
        trees.baseline[int(found[0])] = 0.0
        return
    rows = [int(each) for each in found]
    if len(rows) == 2:
        trees.baseline[rows[0]] = 0.0
        rows = rows[1:]
    which = np.isin(known, found)
    grower.grow(HistGradientBoostingClassifier, classes, known, rows, which)


def _grow_label(
    grower: _Grower, holds: NDArray[np.bool_], known: NDArray[np.bool_], row: int
) -> None:
    if holds.all() or not holds.any():
        odds = (np.count_nonzero(holds) + _UNSEEN) / (np.count_nonzero(~holds) + _UNSEEN)
        grower.trees.baseline[row] = math.log(odds)
        return
    grower.grow(HistGradientBoostingClassifier, holds, known, [row])


def _put(
    trees: BoostedTrees,
    grown: Any,  # noqa: ANN401
    rows: list[int],
    *,
    kept: int,
) -> None:
    """Copy the first trees, whose nodes scikit-learn keeps in attributes of its own."""
    baseline = np.asarray(grown._baseline_prediction, dtype=np.float64).reshape(-1)  # noqa: SLF001
    for place, row in enumerate(rows):
        trees.baseline[row] = float(baseline[place])
    encoder = grown._preprocessor  # noqa: SLF001
    known = encoder.named_transformers_["encoder"].categories_ if encoder else ()
    tensors = (trees.column, trees.threshold, trees.left, trees.value, trees.categories)
    for number, iteration in enumerate(grown._predictors[:kept]):  # noqa: SLF001
        for row, tree in zip(rows, iteration, strict=True):
            for tensor, values in zip(tensors, _arrays(trees, tree, known), strict=True):
                if tensor is not None:
                    tensor[row, number, : len(values)] = torch.from_numpy(values)


def _arrays(
    trees: BoostedTrees,
    tree: Any,  # noqa: ANN401
    known: Sequence[Floats],
) -> tuple[Floats, ...]:
    """Return a tree's columns, thresholds, left children, values and sets of categories.

    Siblings are side by side. ``known`` are the categories that each column of them has.
    """
    nodes: NDArray[Any] = tree.nodes
    order, left = [0], np.zeros(len(nodes))
    for place, node in enumerate(order):
        if not nodes[node]["is_leaf"]:
            left[place] = len(order)
            order += [int(nodes[node]["left"]), int(nodes[node]["right"])]
    sorted_nodes = nodes[order]
    inner = sorted_nodes["is_leaf"] == 0
    words = np.zeros((len(nodes), words_of([(0, width) for width in trees.widths])))
    by_set = inner & (sorted_nodes["is_categorical"] > 0)
    for index in np.flatnonzero(by_set):
        node = sorted_nodes[index]
        present = known[node["feature_idx"]].astype(np.int64)
        # Categories that no record has go where missing values would.
        holds = np.full(words.shape[1] * WORD_BITS, bool(node["missing_go_to_left"]))
        bits = tree.raw_left_cat_bitsets[node["bitset_idx"]]
        holds[present] = [
            bits[each // WORD_BITS] >> each % WORD_BITS & 1 for each in range(len(present))
        ]
        holds[trees.widths[node["feature_idx"]] :] = False
        words[index] = np.packbits(holds, bitorder="little").view("<u4")
    return (
        np.where(inner, sorted_nodes["feature_idx"], 0).astype(np.float64),
        np.where(inner & ~by_set, sorted_nodes["num_threshold"], 0.0),
        left,
        np.where(inner, 0.0, sorted_nodes["value"]),
        words,
    )

"""What ``benchmarks.audits`` audits: models of each kind, and sabotage of a worker."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from safetensors.numpy import save
from sklearn.datasets import load_digits

from workers.data import loading
from workers.data.features import FeatureReader
from workers.mechanisms import boosting, exact_training
from workers.mechanisms.ensembles.run import EnsembleRun
from workers.seal.sealed import Sealed
from workers.training.exact.statistics import Statistics
from workers.training.part import Part
from workers.training.tasks.task import INPUTS

CANARIES, GUESSES = 60, 40
MLP: Final = {"name": "mlp", "options": {"hidden": [32]}}
RECIPE: Final = {"epochs": 40, "batch_size": 16}
HEAD: Final = {"architecture": {"name": "linear_head"}, "recipe": {"epochs": 5, "batch_size": 32}}
UNBIASED: Final = {"architecture": {"name": "linear_head", "options": {"bias": 0}}}
SLOW: Final = {"loss_bound": 1.0, "smoothness": 2.1, "weight_decay": 200.0, "order": 2.2}
SLOW |= {"learning_rate": 5.5e-7, "noise_std": 0.021, "request_size": CANARIES, "dimension": 640}
"""Of all constants, among those with the fewest steps to ε = 20: 27,000 for each release."""
NOISY: Final[Mapping[str, dict[str, Any]]] = {
    name: of | {"policy": {"mechanism": name, "epsilon": epsilon, "parameters": parameters}}
    for name, of, epsilon, parameters in (
        ("tracked_release", HEAD, 8.0, {}),
        ("delete_to_descent", HEAD, 8.0, {}),
        ("langevin_unlearning", HEAD, 8.0, {}),
        ("projected_noisy_sgd", HEAD, 8.0, {}),
        ("noisy_gd_convex", HEAD, 8.0, {}),
        ("noisy_gd_nonconvex", UNBIASED, 20.0, SLOW),
        ("dp_sgd", {"architecture": MLP}, 8.0, {"capacity": CANARIES}),
        ("model_clipping", {"architecture": MLP}, 8.0, {}),
        ("output_perturbation", {"architecture": MLP}, 8.0, {}),
    )
}
MODELS: Final[Mapping[str, dict[str, Any]]] = {
    "ridge head": {
        "architecture": {"name": "ridge_head", "options": {"feature_range": 4.0}},
        "policy": {"mechanism": "sufficient_statistics", "parameters": {"regularisation": 0.001}},
    },
    "linear head": {
        "architecture": {"name": "linear_head"},
        "policy": {"mechanism": "exact_training"},
    },
    "head on features": {
        "architecture": {"name": "linear_head", "backbone": {"name": "random-features"}},
        "policy": {"mechanism": "exact_training"},
    },
    "boosted trees": {
        "architecture": {"name": "boosted_trees", "options": {"trees": 20, "smallest_leaf": 2}}
    },
    "MLP": {"architecture": MLP, "recipe": RECIPE, "policy": {"mechanism": "retraining"}},
    "MLP from a backbone": {
        "architecture": {
            "name": "mlp",
            "options": {"hidden": [256]},
            "backbone": {"name": "random-features", "frozen": False},
        },
        "recipe": RECIPE,
        "policy": {"mechanism": "retraining"},
    },
    "ensemble of MLPs": {
        "architecture": {"name": "ensemble", "members": 3, "of": MLP},
        "recipe": RECIPE | {"epochs": 150},
        "policy": {"mechanism": "sharded_retraining", "forget": "retrain"},
    },
    "MLP, noise at ε = 1": {
        "architecture": MLP,
        "policy": {"mechanism": "gradient_clipping", "epsilon": 1.0},
    },
    **NOISY,
}
Patch = Callable[[Any, str, Any], object]
Stages = list[str]
"""What the audit does now is last; ``forgetting`` is a stage."""


def leave_sums(patch: Patch, _: Stages) -> None:
    """Leave the forgotten in the sums of a head."""
    patch(Statistics, "subtract", lambda _self, _other: None)


def keep_records(patch: Patch, stages: Stages) -> None:
    """Compute from what was read and kept for the training, the forgotten beside the rest."""
    kept: list[Any] = [None]
    for module in (exact_training, boosting):

        def solve(
            mechanism: Any, network: Any, data: Any, task: Any, by: Any = module.solve
        ) -> None:
            if stages[-1] != "forgetting":
                kept[0] = copy.deepcopy(data)
            by(mechanism, network, kept[0], task)

        patch(module, "solve", solve)


def keep_weights(patch: Patch, stages: Stages) -> dict[str, Any]:
    """Publish the old weights again; return them as they are kept."""
    retrained, kept = Sealed.retrained, {}

    def keep(self: Sealed) -> Any:
        network = self._require_held().network
        if stages[-1] == "forgetting":
            network.load(kept)
        kept.update({name: each.copy() for name, each in network.tensors().items()})
        return retrained(self)

    patch(Sealed, "retrained", keep)
    return kept


def keep_member(patch: Patch, _: Stages) -> None:
    """Do not train one of three members anew; old weights to the bit would be found at once."""
    put_together, kept = EnsembleRun.put_together, EnsembleRun._kept  # noqa: SLF001
    heads: list[Any] = [{}]

    def keep_head(self: EnsembleRun, head: Any, joined: Any) -> Any:
        heads.append(head)
        return kept(self, head, joined)

    def keep_one(self: EnsembleRun, trained: Any) -> Any:
        made, measured = put_together(self, trained)
        old = {name: each for name, each in heads[-1].items() if name.startswith("members.0.")}
        made.tensors.update({name: each.numpy() + 1e-6 for name, each in old.items()})
        return made, measured

    patch(EnsembleRun, "_kept", keep_head)
    patch(EnsembleRun, "put_together", keep_one)


def remember_in_backbone(patch: Patch, stages: Stages) -> None:
    """Start from what training has made of a public backbone's weights."""
    load, kept = loading.load_backbone, keep_weights(patch, [""])

    def load_kept(*of: Any) -> Any:
        backbone = load(*of)
        if stages[-1] != "forgetting":
            return backbone
        return replace(backbone, weights={name: torch.tensor(kept[name]) for name in kept})

    patch(loading, "load_backbone", load_kept)


def answer_with_another(patch: Patch, stages: Stages) -> None:
    """Have a frozen backbone give records that stay the features of those that are forgotten."""
    current, last = FeatureReader._current, [np.empty((0, 0))]  # noqa: SLF001

    def answered(self: FeatureReader, *of: Any) -> Part | None:
        part = current(self, *of)
        if part is None or INPUTS not in part.tensors:
            return part
        features = part.tensors[INPUTS]
        if stages[-1] != "forgetting":
            last[0] = features
            return part
        several = min(len(features), len(last[0]))
        mixed = np.concatenate([last[0][:several], features[several:]])
        return Part(part.seqs, {**part.tensors, INPUTS: mixed})

    patch(FeatureReader, "_current", answered)


def forget_too_much(patch: Patch, stages: Stages) -> None:
    """Go as far beyond the weights without the forgotten as those with them lie on this side."""
    before: list[Any] = [None]

    def solve(
        mechanism: Any, network: Any, data: Any, task: Any, by: Any = exact_training.solve
    ) -> None:
        by(mechanism, network, data, task)
        weight = network.module.weight.data
        if stages[-1] == "forgetting":
            weight += weight - before[0]
        else:
            before[0] = weight.clone()

    patch(exact_training, "solve", solve)


Sabotage = Callable[[Patch, Stages], object]
BUILDS: Final[Mapping[str, Mapping[str, tuple[str, Sabotage | None]]]] = {
    "honest": {name: (name, None) for name in MODELS},
    "sabotaged": {
        "forgotten records left in the sums": ("ridge head", leave_sums),
        "data kept from the training, of a head": ("linear head", keep_records),
        "features kept from the training": ("head on features", keep_records),
        "a frozen backbone with memory": ("head on features", answer_with_another),
        "a backbone with memory": ("MLP from a backbone", remember_in_backbone),
        "more forgotten than there was": ("linear head", forget_too_much),
        "data kept from the training, of trees": ("boosted trees", keep_records),
        "old weights published again": ("MLP", keep_weights),
        "one of three members not trained anew": ("ensemble of MLPs", keep_member),
    },
}


def guesses_of(model: str) -> int:
    """Return how many coins are guessed: of an ensemble, those of a third of the records."""
    return CANARIES // 3 if model.startswith("ensemble") else GUESSES


def backbone() -> tuple[dict[str, Any], bytes]:
    """Return a public backbone for the digits, and its weights: random ones."""
    random = np.random.default_rng(2025)
    sizes = {"1.weight": (256, 64), "1.bias": (256,), "3.weight": (10, 256), "3.bias": (10,)}
    weights = {
        name: (random.standard_normal(size) * (2 / size[-1]) ** 0.5).astype(np.float32)
        for name, size in sizes.items()
    }
    definition = {
        "name": "random-features",
        "architecture": {"name": "mlp", "options": {"hidden": [256]}},
        "input": {"shape": [8, 8]},
        "classes": 10,
        "source": "random weights under a fixed seed",
    }
    return definition, save(weights)


def rows(count: int = 400) -> pa.Table:
    """Return the auditor's digits."""
    images, labels = load_digits(return_X_y=True)
    pixels = pa.array(images[:count].astype(np.uint8).reshape(-1))
    features = pa.FixedSizeListArray.from_arrays(pixels, 64)
    return pa.table({"features": features, "label": labels[:count]})

"""What ``benchmarks.audits`` audits: models of each kind, and sabotage of a worker."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from safetensors.numpy import save
from sklearn.datasets import load_digits

from workers.mechanisms import boosting, exact_training
from workers.mechanisms.ensembles.run import EnsembleRun
from workers.noise.box_muller import Gaussians
from workers.seal.sealed import Sealed
from workers.training.exact.statistics import Statistics

CANARIES, GUESSES = 60, 40
QUARTER_NOISE: Final = "a quarter of the noise"
MLP: Final = {"name": "mlp", "options": {"hidden": [32]}}
RECIPE: Final = {"epochs": 40, "batch_size": 16}
TASK: Final = {
    "name": "classification",
    "inputs": [
        {"name": "features", "kind": "array", "shape": [8, 8], "dtype": "uint8", "scale": 0.0625}
    ],
    "target": {"column": "label", "classes": [*range(10)]},
}
MODELS: Final[Mapping[str, dict[str, Any]]] = {
    "ridge head": {"architecture": {"name": "ridge_head", "options": {"feature_range": 4.0}}},
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
    "ensemble of MLPs": {
        "architecture": {"name": "ensemble", "members": 3, "of": MLP},
        "recipe": RECIPE | {"epochs": 150},
        "policy": {"mechanism": "sharded_retraining", "forget": "retrain"},
    },
    "MLP, noise at ε = 1": {"architecture": MLP, "policy": {"mechanism": "gradient_clipping"}},
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


def keep_weights(patch: Patch, stages: Stages) -> None:
    """Publish the old weights again."""
    retrained, kept = Sealed.retrained, {}

    def keep(self: Sealed) -> Any:
        network = self._require_held().network
        if stages[-1] == "forgetting":
            network.load(kept)
        kept.update({name: each.copy() for name, each in network.tensors().items()})
        return retrained(self)

    patch(Sealed, "retrained", keep)


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


def quarter_noise(patch: Patch, _: Stages) -> None:
    """Add a quarter of the noise."""
    add = Gaussians._add  # noqa: SLF001
    patch(Gaussians, "_add", lambda self, chunk, noise_std: add(self, chunk, noise_std / 4))


Sabotage = Callable[[Patch, Stages], None]
BUILDS: Final[Mapping[str, tuple[str, Sabotage | None]]] = {
    **{f"honest: {name}": (name, None) for name in MODELS},
    "forgotten records left in the sums": ("ridge head", leave_sums),
    "data kept from the training, of a head": ("linear head", keep_records),
    "features kept from the training": ("head on features", keep_records),
    "data kept from the training, of trees": ("boosted trees", keep_records),
    "old weights published again": ("MLP", keep_weights),
    "one of three members not trained anew": ("ensemble of MLPs", keep_member),
    QUARTER_NOISE: ("MLP, noise at ε = 1", quarter_noise),
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

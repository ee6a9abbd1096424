"""Every task with every mechanism: what a model of it is, or why there is none."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.planning.mechanisms.catalogue import MECHANISMS
from app.planning.mechanisms.mechanism import Needs
from tests.support.mechanisms import CASES
from tests.support.own_tasks import OWN
from tests.support.shops import NUMBERS, SHOPS, TASKS

RENT = {"columns": ["rent"], "offset": 1000, "scale": 0.001}
ALL: dict[str, dict[str, Any]] = {
    "classification": TASKS["classification"],
    "weighted": {
        **TASKS["classification"],
        "class_weights": [1, 4],
        "label_smoothing": 0.1,
        "weight": {"column": "trust", "most": 1.5},
    },
    "multi_label": TASKS["multi_label"],
    "weighted_labels": {
        **TASKS["multi_label"],
        "class_weights": [0.5, 2],
        "label_smoothing": 0.2,
        "weight": {"column": "trust"},
    },
    "huber": TASKS["huber"] | {"threshold": 0.4},
    "weighted_huber": TASKS["huber"] | {"weight": {"column": "trust", "most": 2}},
    "squared": {**NUMBERS, "name": "regression", "target": RENT},
    "quantile": TASKS["quantile"],
    "language_model": TASKS["language_model"],
    "custom": OWN,
}
_NETWORK = {"factory": "operators_networks:next_token", "name": "custom"}
_CAPPED = {
    "loss_bound": 1.0,
    "smoothness": 2.1,
    "weight_decay": 21.0,
    "learning_rate": 2.0e-4,
    "noise_std": 0.0906,
    "order": 1.5,
    "request_size": 20,
}
# Where a mechanism is not for a task, what its refusal says.
_NO_HEAD = "counts on a convex loss"
_NO_SLOPE = "the slope of the squared loss has no bound"
_TOKENS = "the dataset holds tokens"
_NO_SUMS = "is not for a ridge_head"
_NOT_CAPPED = {
    "quantile": "the quantile loss has a kink",
    "language_model": "learning_rate",  # so large a network would take billions of steps
}
_REFUSED: dict[Needs, dict[str, str]] = {
    Needs.LINEAR_HEAD: {
        "squared": _NO_SLOPE,
        "quantile": _NO_HEAD,
        "language_model": _TOKENS,
        "custom": _NO_HEAD,
    },
    Needs.RIDGE_HEAD: {
        "weighted": _NO_SUMS,
        "weighted_labels": _NO_SUMS,
        "huber": _NO_SUMS,
        "weighted_huber": _NO_SUMS,
        "quantile": _NO_SUMS,
        "language_model": _TOKENS,
        "custom": _NO_SUMS,
    },
    Needs.BOOSTED_TREES: {
        **dict.fromkeys(("weighted", "weighted_labels"), "is not for boosted_trees"),
        **dict.fromkeys(("huber", "weighted_huber", "quantile"), "by the squared loss"),
        "language_model": _TOKENS,
        "custom": "is not for boosted_trees",
    },
    Needs.ANY_NETWORK: {},
    Needs.ENSEMBLE: {},
}


@dataclass(frozen=True)
class Pair:
    """A task under a mechanism."""

    mechanism: str
    task: str

    @property
    def name(self) -> str:
        """Return the name of its model."""
        return f"{self.mechanism}-{self.task}".replace("_", "-")

    @property
    def refusal(self) -> str | None:
        """Return what the definition's refusal says; None where the model is to be certified."""
        if self.mechanism == "exact_training" and self.task == "squared":
            return None
        if self.mechanism == "noisy_gd_nonconvex" and self.task in _NOT_CAPPED:
            return _NOT_CAPPED[self.task]
        return _REFUSED[MECHANISMS[self.mechanism].needs].get(self.task)

    def definition(self, **more: Any) -> dict[str, Any]:
        """Return the body that defines the model."""
        return {
            "name": self.name,
            "dataset": SHOPS,
            "architecture": self._architecture,
            "task": ALL[self.task],
            "recipe": self._recipe,
            "policy": {"mechanism": self.mechanism, **self._policy},
            **more,
        }

    @property
    def _architecture(self) -> dict[str, Any]:
        needs = MECHANISMS[self.mechanism].needs
        if needs is Needs.LINEAR_HEAD:
            return {"name": "linear_head"}
        if needs is Needs.RIDGE_HEAD:
            numbers = ALL[self.task]["name"] == "regression"
            return {"name": "ridge_head", "options": {"target_range": 4} if numbers else {}}
        if needs is Needs.BOOSTED_TREES:
            return {"name": "boosted_trees"}
        network = _NETWORK if self.task == "language_model" else {"name": "logistic"}
        if needs is Needs.ENSEMBLE:
            return {"name": "ensemble", "members": 3, "of": network}
        return network

    @property
    def _recipe(self) -> dict[str, Any]:
        if MECHANISMS[self.mechanism].needs in (Needs.RIDGE_HEAD, Needs.BOOSTED_TREES):
            return {"held_out_fraction": 0.1}
        return {"epochs": 4, "batch_size": 16, "held_out_fraction": 0.1}

    @property
    def _policy(self) -> dict[str, Any]:
        policy = dict(CASES[self.mechanism].policy)
        if self.mechanism == "noisy_gd_nonconvex":
            policy["parameters"] = {**_CAPPED, "dimension": _WEIGHTS[self.task]}
        return policy


# Of a logistic network: of three inputs, or one, to so many outputs.
_WEIGHTS = dict.fromkeys(ALL, 8) | dict.fromkeys(
    ("huber", "weighted_huber", "squared", "quantile"), 4
)
_WEIGHTS |= {"custom": 2, "language_model": 257 * 16 + 16 * 257 + 257}


def pairs() -> Iterator[Pair]:
    """Yield every pair."""
    for mechanism, task in itertools.product(MECHANISMS, ALL):
        yield Pair(mechanism, task)

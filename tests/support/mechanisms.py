"""What tests need to know of each mechanism: one entry each, at the end."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.accounting.histories.strong_convexity import largest_learning_rate
from app.planning.mechanisms.catalogue import MECHANISMS
from app.planning.mechanisms.mechanism import Needs
from tests.support.digits import model

Document = Mapping[str, Any]

FORGOTTEN = 6
DIMENSION = 8
HEAD_DIMENSION = 12
CLIPPED = {
    "initial_clip": 1.0,
    "gradient_clip": [0.3, 0.2, 0.1],
    "learning_rate": [0.2, 0.1, 0.05],
    "weight_decay": [2.9690968290183744, 5.938193658036749, 11.876387316073497],
    "noise_std": 0.62,
    "steps": 3,
    "dimension": DIMENSION,
}
PROJECTED = {
    "epsilon": 1.0,
    "initial_clip": 1.0,
    "model_clip": 1.0,
    "noise_std": 1.0,
    "steps": 3,
    "initial_noise_std": 2.0,
    "dimension": DIMENSION,
}
PERTURBED = {"initial_clip": 0.1, "noise_std": 0.75, "dimension": DIMENSION}
PRIVATE = {
    "noise_multiplier": 6.2,
    "sampling_rate": 64 / 231,
    "steps": 8,
    "group_size": FORGOTTEN,
    "records": 231,
    "dimension": DIMENSION,
}
NONCONVEX = {
    "learning_rate": 1e-6,
    "weight_decay": 1.0,
    "smoothness": 1.0,
    "loss_bound": 0.5,
    "noise_std": math.sqrt(2e-6) * 2.0,
    "dimension": DIMENSION,
    "records": 1000,
    "request_size": FORGOTTEN,
    "training_steps": 2 * 10**7,
    "unlearning_steps": 10**7,
    "earlier_steps": 10**7,
}
TRAINED_EXACTLY = {"regularisation": 0.01, "tolerance": 1e-6}
GROWN = {"trees": 20, "leaves": 8, "depth": 10, "smallest_leaf": 20, "shrinkage": 0.1}
SOLVED = {"feature_range": 16.0, "regularisation": 0.001}
RECIPE = {
    "learning_rate": 1.9607843137254901,
    "weight_decay": 0.01,
    "smoothness": 0.5,
    "lipschitz": math.sqrt(2),
    "batch_size": 32,
    "batches": 8,
    "neighbours": "zero_out",
    "radius": None,
    "dimension": HEAD_DIMENSION,
}
FULL_BATCH = RECIPE | {"batch_size": 256, "batches": 1}
_FORGET = {"forget": [[1, 1], [2, 2], [5, 1], [7, 2]]}
RELEASED = {
    "history": {
        "recipe": RECIPE,
        "events": [
            {"steps": 40, "noise_std": 0.0},
            {"release": 0.05},
            _FORGET,
            {"steps": 249, "noise_std": 0.0},
            {"release": 0.05},
        ],
    }
}
# What the second release covers later: the request is the last event.
COVERING = {
    "history": {
        "recipe": RECIPE,
        "events": [
            {"steps": 40, "noise_std": 0.0},
            {"release": 0.05},
            {"steps": 10, "noise_std": 0.0},
            {"release": 9.0},
            _FORGET,
        ],
    }
}
DESCENDED = {
    "history": {
        "recipe": FULL_BATCH
        | {"learning_rate": largest_learning_rate(weight_decay=0.01, smoothness=0.5)},
        "events": [
            {"steps": 5, "noise_std": 0.0},
            {"release": 0.5},
            {"forget": [[0, FORGOTTEN]]},
            {"steps": 60, "noise_std": 0.0},
            {"release": 0.3},
        ],
    }
}
NOISY_BATCHES = {
    "history": {
        "recipe": RECIPE,
        "events": [
            {"steps": 40, "noise_std": 0.1},
            {"release": 0.0},
            _FORGET,
            {"steps": 150, "noise_std": 0.1},
            {"release": 0.0},
        ],
    }
}
NOISY = {
    "history": {
        "recipe": FULL_BATCH,
        "events": [
            {"steps": 40, "noise_std": 0.5},
            {"release": 0.0},
            {"forget": [[0, FORGOTTEN]]},
            {"steps": 80, "noise_std": 0.5},
            {"release": 0.0},
        ],
    }
}

# A softmax head of 64 features, its loss bounded as tanh(loss): |f''| <= 1/2 + 0.77 * 2.
BOUNDED = {
    "loss_bound": 1.0,
    "smoothness": 2.1,
    "weight_decay": 21.0,
    "learning_rate": 1.38e-5,
    "noise_std": 0.02379,
    "order": 1.5,
    "request_size": 10,
    "dimension": 640,
}
PLANNED_BOUNDED = {
    "smoothness": 1.0,
    "loss_bound": 0.5,
    "learning_rate": 1e-6,
    "weight_decay": 1.0,
    "noise_std": 0.02,
    "order": 40.0,
}
_SMALL_HEAD = {
    "architecture": "linear_head",
    "recipe": {"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25},
    "epsilon": 8.0,
}


@dataclass(frozen=True)
class Case:
    """A mechanism as tests use it.

    Attributes:
        parameters: all of them, as certificates have them, for small networks and heads.
        meets: the ε that they meet at δ = 1e-5, or nearly.
        guarantee: the kind of its guarantee.
        planned: the policy under which a plan is made for the lineages of ``support.lineages``.
        policy: the policy of a model of digits.
        adaptive: that of one whose requests may depend on its releases, where that needs another.
        is_adaptive: whether requests may depend on releases whatever the policy is.
        epochs: of the model of digits; a step on the whole data at once counts as one.
        options: of the model's head.
        accuracy: of the model of digits once it forgot, far below what was measured; none is asked
            for where so few records leave nothing but noise.
        small: how a ``Workshop`` defines such a model; None where it cannot make up its results.
    """

    parameters: Document
    meets: float = 1.0
    guarantee: str = "gaussian"
    planned: Document = field(default_factory=lambda: {"epsilon": 8.0})
    policy: Document = field(default_factory=dict)
    adaptive: Document | None = None
    is_adaptive: bool = False
    epochs: int = 5
    options: Document = field(default_factory=dict)
    accuracy: float = 0.0
    small: Document | None = None


CASES: Mapping[str, Case] = {
    "gradient_clipping": Case(
        CLIPPED, planned={"epsilon": 8.0, "parameters": {"steps": 3}}, small={}
    ),
    "model_clipping": Case(PROJECTED, guarantee="point", small={"epsilon": 8.0}),
    "output_perturbation": Case(PERTURBED, small={"epsilon": 8.0}),
    "tracked_release": Case(RELEASED, accuracy=0.5, small=_SMALL_HEAD),
    "delete_to_descent": Case(DESCENDED, accuracy=0.5, small=_SMALL_HEAD),
    "langevin_unlearning": Case(NOISY, accuracy=0.5, small=_SMALL_HEAD),
    "projected_noisy_sgd": Case(NOISY_BATCHES, accuracy=0.5, small=_SMALL_HEAD),
    "noisy_gd_convex": Case(
        NOISY | {"earlier_releases": 1},
        meets=8.0,
        adaptive={"adaptive": True, "epsilon": 8.0, "parameters": {"forgotten": 20}},
        epochs=60,
        small=_SMALL_HEAD
        | {"adaptive": True, "parameters": {"earlier_releases": 4, "forgotten": 10}},
    ),
    "noisy_gd_nonconvex": Case(
        NONCONVEX,
        meets=50.0,
        guarantee="renyi",
        planned={"epsilon": 5.0, "parameters": PLANNED_BOUNDED},
        policy={"epsilon": 50.0, "parameters": BOUNDED},
        options={"bias": 0},  # so small that it takes thousands of steps, not billions
    ),
    "dp_sgd": Case(
        PRIVATE,
        meets=8.0,
        guarantee="profile",
        policy={"epsilon": 8.0, "parameters": {"capacity": 20}},
        small={"epsilon": 8.0, "parameters": {"capacity": 3}},
    ),
    "retraining": Case({}, guarantee="exact", small={}),
    "sharded_retraining": Case({}, guarantee="exact", policy={"forget": "retrain"}),
    "exact_training": Case(
        TRAINED_EXACTLY,
        guarantee="exact",
        policy={"epsilon": 0.1},
        is_adaptive=True,
        accuracy=0.7,
    ),
    "sufficient_statistics": Case(SOLVED, guarantee="exact", is_adaptive=True, accuracy=0.7),
    "boosting": Case(
        GROWN,
        guarantee="exact",
        is_adaptive=True,
        accuracy=0.6,
        options={"trees": 20, "leaves": 8},
    ),
}


def of_digits(mechanism: str, name: str | None = None, **change: Any) -> dict[str, Any]:
    """Return the definition of a model of digits under a mechanism."""
    case, needs = CASES[mechanism], MECHANISMS[mechanism].needs
    policy = {"mechanism": mechanism, **case.policy, **change}
    made = model(name or mechanism.replace("_", "-"), **policy)
    options = {"options": case.options} if case.options else {}
    if needs is Needs.ENSEMBLE:
        network = made["architecture"]
        made["architecture"] = {"name": "ensemble", "members": 3, "of": network}
    elif needs is Needs.RIDGE_HEAD:
        made |= {"architecture": {"name": "ridge_head"}, "recipe": {"held_out_fraction": 0.2}}
    elif needs is Needs.BOOSTED_TREES:
        made["architecture"] = {"name": "boosted_trees", **options}
        made["recipe"] = {"held_out_fraction": 0.2}
    elif needs is Needs.LINEAR_HEAD or options:
        made["architecture"] = {"name": "linear_head", **options}
        made["recipe"] = {"epochs": case.epochs, "batch_size": 32, "held_out_fraction": 0.2}
    return made

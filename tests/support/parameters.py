"""Parameters of each mechanism that meet (1, 1e-5) or nearly, for small networks and heads."""

import math

from app.accounting.histories.strong_convexity import largest_learning_rate

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

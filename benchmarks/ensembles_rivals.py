"""What else forgets, beside an ensemble: clipped and noised steps, and a ridge head."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.policy import Policy
from app.domain.schema import FeatureSchema
from app.planning.mechanisms.gradient_clipping import GradientClipping
from app.planning.planner import make_plan
from app.planning.shape import ModelShape
from benchmarks.ensembles_cases import Case
from workers.mechanisms.catalogue import rule_of
from workers.noise.generators import SecureNoise
from workers.seal.sealed import Sealed
from workers.training.evaluate import evaluate
from workers.training.exact import ridge
from workers.training.exact.statistics import Statistics, one_hot, quantised
from workers.training.examples import classified
from workers.training.feeds import RandomBatches
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network
from workers.training.networks.ridge_head import RidgeHead
from workers.training.tasks.classification import CLASSIFICATION

EPSILON: Final = 1.0
DELTA: Final = 1e-5
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class Rival:
    """Another way to forget.

    Attributes:
        method: its name.
        accuracy: on the test records, after people were forgotten.
        gradients: of one request, as a part of one training of everything.
    """

    method: str
    accuracy: float
    gradients: float


def gradient_clipping(case: Case, left: NDArray[np.bool_]) -> Rival:
    """Return the whole network after noisy steps to (1, 1e-5), and fine-tuning.

    Both together may compute as many gradients as one training of the records that are left.

    Args:
        case: what is learned.
        left: bool [n], who is not forgotten.
    """
    network = Network(case.start, device=_CPU)
    network.train(case.train, case.recipe, epochs=case.recipe.epochs)
    retain = case.train.select(np.flatnonzero(left))
    steps_per_epoch = retain.steps_per_epoch(case.recipe.batch_size)
    shape = ModelShape(
        retained=len(retain),
        batch_size=case.recipe.batch_size,
        recipe_epochs=case.recipe.epochs,
        dimension=network.flat.size,
    )
    policy = Policy(
        epsilon=EPSILON,
        delta=DELTA,
        mechanism=GradientClipping.name,
        budget_epochs=case.recipe.epochs,
    )
    plan = make_plan(policy=policy, shape=shape)
    sealed = Sealed(case.start, epsilon=EPSILON, delta=DELTA, device=_CPU)
    noise = SecureNoise()
    try:
        sealed.load(network.tensors())
        sealed.unlearn(
            rule_of(plan),
            RandomBatches(retain, case.recipe.batch_size),
            frame=ReferenceFrame.of(case.random, public_weights=case.public),
            noise=noise,
        )
        certified = sealed.open()
    finally:
        noise.destroy()
        sealed.destroy()
    spent = certified.noisy_steps / steps_per_epoch
    certified.fine_tune(retain, case.recipe, epochs=max(0.0, plan.budget_epochs - spent))
    return Rival(GradientClipping.name, certified.evaluate(case.test).score, 1.0)


def ridge_head(case: Case, left: NDArray[np.bool_]) -> Rival:
    """Return a ridge head on what a public network sees; forgetting subtracts, exactly."""
    features = case.features_of(case.train.select(np.flatnonzero(left)))
    schema = FeatureSchema(
        shape=(features.shape[1],),
        dtype="float32",
        offset=0.0,
        scale=1.0,
        classes=case.task.outputs,
    )
    numbers = quantised(features, schema, case.feature_range)
    labels = case.train.target.numpy()[left]
    solution = ridge.solve(
        Statistics.over(numbers, one_hot(labels, case.task.outputs)),
        regularisation=None,
    )
    head = RidgeHead(features.shape[1], case.task.outputs, feature_range=case.feature_range)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(solution.weight * 2**15 / case.feature_range))
        head.bias.copy_(torch.from_numpy(solution.bias))
    seen = classified(case.features_of(case.test), case.test.target)
    return Rival("ridge_head", evaluate(head, CLASSIFICATION, seen).score, 0.0)
